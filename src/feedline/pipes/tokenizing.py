"""`feedline.text.tokenize`: a dataset of texts as a dataset of tokens, several texts in one call of the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from feedline.pipes.cursor import Stopped, up_to_failure
from feedline.pipes.lap import Draws, Samples
from feedline.pipes.methods import Pipe, stage_of
from feedline.pipes.operators.each import each
from feedline.pipes.pipe import pipe_of
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
    encoder = Encoder.of(tokenizer, append_eos=append_eos, dtype=dtype)
    label = f"tokenize({tokenizer_name(tokenizer)}, {encoder.dtype})"
    return pipe_of(each(stage_of(source, "source"), label, _Tokenize(encoder, field, label), least=_AT_ONCE))


@dataclass(frozen=True, eq=False)
class _Tokenize:
    encoder: Encoder
    field: str | int | None
    label: str

    def __call__(self, samples: Samples, draws: Draws, places: Sequence[int]) -> Samples:
        with timed(self.label):
            made, failure = up_to_failure(self._encode, samples)
        if failure is not None:
            raise Stopped(failure, made, samples[len(made) : len(made) + 1], samples[len(made) + 1 :])
        return made

    def _encode(self, samples: Samples) -> Samples:
        return list(self.encoder([text_of(sample, self.field) for sample in samples]))
