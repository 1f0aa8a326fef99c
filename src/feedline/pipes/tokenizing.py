"""`feedline.text.tokenize`: a dataset of texts as a dataset of tokens, several texts in one call of the tokenizer."""

from __future__ import annotations

from typing import Any

from feedline.pipes.cursor import Cursor, OneToOneCursor, Stopped
from feedline.pipes.lap import Draws, Lap, Places, Samples
from feedline.pipes.methods import Pipe, stage_of
from feedline.pipes.pipe import pipe_of
from feedline.pipes.stage import MapStage, Stage, StreamStage
from feedline.randomness.scope import stage as timed
from feedline.text.encoder import Encoder, EndOption, text_of, tokenizer_name

_AT_ONCE = 64
"""Texts of a stream that splits itself to tokenize in one call: it gives them out one by one."""


# Any: a dataset of any class.
def tokenize(
    source: Any,
    tokenizer: object,
    *,
    field: str | int | None = "text",
    append_eos: EndOption = False,
    dtype: object = None,
) -> Pipe:
    """Return a pipe whose samples are the tokens of the texts of a dataset.

    A map-style dataset gives a map-style pipe, and an iterable dataset an iterable one. The texts of a batch are
    tokenized in one call. Samples are arrays of different lengths: batch them with `feedline.collate.pad()`, or pack
    them with `.pack(length)`.

    Args:
        source: a dataset of texts, or of dicts or tuples with a text.
        tokenizer: a function from a text to token ids; an object with `encode_batch`, as in Hugging Face's
            `tokenizers` and tiktoken; or a tokenizer of `transformers`.
        field: the key of the text in a sample, or its place in a tuple. Samples that are texts need none.
        append_eos: True to append the tokenizer's end-of-text token to each text, or the id of a token to append.
        dtype: "uint16", "uint32" or "int64"; by default uint16 if the tokenizer is known to have at most 65,536
            tokens, else uint32.

    Raises:
        BadOption: an option has an invalid value; when a sample is read: it has no text, or a token id does not fit
            into the type.

    Example:
        >>> from feedline.text import tokenize
        >>> texts = [{"text": "to be"}, {"text": "or not"}]
        >>> dataset = tokenize(texts, lambda text: list(text.encode()), append_eos=0)
        >>> dataset
        pipe(list).tokenize(<lambda>, uint32)
        >>> dataset[0].tolist()
        [116, 111, 32, 98, 101, 0]
    """
    encoder, texts = Encoder.of(tokenizer, append_eos=append_eos, dtype=dtype), stage_of(source, "source")
    if isinstance(texts, MapStage):
        return pipe_of(_TokensOfSamples(texts, encoder, field))
    assert isinstance(texts, StreamStage)
    return pipe_of(_TokensOfStream(texts, encoder, field))


class _Tokens(Stage):
    def __init__(self, source: Stage, encoder: Encoder, field: str | int | None) -> None:
        self.sources = (source,)
        self.label = f"tokenize({tokenizer_name(encoder.tokenizer)}, {encoder.dtype})"
        self._encoder, self._field = encoder, field

    def encode(self, samples: Samples) -> Samples:
        """Return the tokens of the texts of samples."""
        with timed(self.label):
            return list(self._encoder([text_of(sample, self._field) for sample in samples]))


class _TokensOfSamples(_Tokens, MapStage):
    def __init__(self, source: MapStage, encoder: Encoder, field: str | int | None) -> None:
        super().__init__(source, encoder, field)
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def origin(self, place: int, epoch: int) -> tuple[object, int]:
        return self._source.origin(place, epoch)

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        return self.encode(self._source.read(places, epoch, draws))


class _TokensOfStream(_Tokens, StreamStage):
    def __init__(self, source: StreamStage, encoder: Encoder, field: str | int | None) -> None:
        super().__init__(source, encoder, field)
        self._source = source
        self.is_endless = source.is_endless
        self.is_sharded = source.is_sharded

    def count(self) -> int | None:
        return self._source.count()

    def open(self, lap: Lap) -> Cursor:
        return _TokenCursor(self._source.open(lap), lap, self)


class _TokenCursor(OneToOneCursor):
    def __init__(self, source: Cursor, lap: Lap, stage: _TokensOfStream) -> None:
        super().__init__(source, lap)
        self._stage = stage

    def _need(self, count: int) -> int:
        return max(count, _AT_ONCE) if self._stage.is_sharded else count

    def _process(self, items: Samples, first: int) -> Samples:
        try:
            return self._stage.encode(items)
        except Exception:
            return self._each(items)  # finds out which one fails

    def _each(self, items: Samples) -> Samples:
        made: Samples = []
        for number, item in enumerate(items):
            try:
                made += self._stage.encode([item])
            except Exception as exc:
                raise Stopped(exc, made, [item], items[number + 1 :]) from None
        return made
