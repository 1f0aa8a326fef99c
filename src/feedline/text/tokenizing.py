"""`tokenize`: a dataset of texts as a dataset of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.source import EpochAware, ShardedSource, StreamSource, copy_for_worker
from feedline.abc.stateful import is_stateful
from feedline.datasets.framework.kind import kind_of
from feedline.datasets.framework.passes import Stream, copied_stream
from feedline.datasets.framework.source import Indices, Source, checked_count
from feedline.text.encoder import Encoder, EndOption, text_of, tokenizer_name
from feedline.text.token_pass import ResumableTokenPass, TokenPass
from feedline.types import DatasetKind, MapStyle

if TYPE_CHECKING:
    from typing_extensions import Self


# Any: a dataset of any class; the result is a map-style or an iterable dataset.
def tokenize(
    source: Any,
    tokenizer: object,
    *,
    field: str | int | None = "text",
    batch: int = 64,
    append_eos: EndOption = False,
    dtype: object = None,
) -> Any:
    """Return a dataset whose samples are the tokens of the texts of another.

    A map-style dataset gives a map-style dataset, and the texts of a batch are tokenized in one call. An iterable
    dataset gives an iterable one, which reads and tokenizes `batch` texts at a time. Samples are arrays of different
    lengths: batch them with `feedline.collate.pad()`, or pack them.

    Args:
        source: a dataset of texts, or of dicts or tuples with a text.
        tokenizer: a function from a text to token ids; an object with `encode_batch`, as in Hugging Face's
            `tokenizers` and tiktoken; or a tokenizer of `transformers`.
        field: the key of the text in a sample, or its place in a tuple. Samples that are texts need none.
        batch: how many texts of an iterable dataset are tokenized in one call.
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
        TokenizedDataset(2 samples of uint32[tokens])
        >>> dataset[0].tolist()
        [116, 111, 32, 98, 101, 0]
    """
    encoder = Encoder.of(tokenizer, append_eos=append_eos, dtype=dtype)
    size = checked_count("batch", batch, 1)
    if kind_of(source, "source") is DatasetKind.MAP:
        return TokenizedDataset(source, encoder, field)
    if isinstance(source, ShardedSource):
        return ShardedTokenizedStream(source, encoder, field, size)
    kind = SharedTokenizedStream if isinstance(source, StreamSource) else TokenizedStream
    return kind(source, encoder, field, size)


class TokenizedDataset(Source):
    """The tokens of the texts of a map-style dataset; `tokenize` makes it."""

    def __init__(self, source: MapStyle[object], encoder: Encoder, field: str | int | None) -> None:
        super().__init__()
        self.source = source
        self.encoder = encoder
        self.field = field

    def __len__(self) -> int:
        return len(self.source)

    def _read(self, indices: Indices) -> list[Any]:
        numbers = indices.tolist()
        together = getattr(self.source, "__getitems__", None)
        samples = [self.source[number] for number in numbers] if together is None else together(numbers)
        return self.encoder([text_of(sample, self.field) for sample in samples])

    def close(self) -> None:
        """Close the dataset of texts, if it can be closed."""
        if callable(close := getattr(self.source, "close", None)):
            close()

    def _form(self) -> str:
        return f"{self.encoder.dtype}[tokens]"


class TokenizedStream(Stream, EpochAware):
    """The tokens of the texts of an iterable dataset; `tokenize` makes it."""

    # Any: a dataset of any class.
    def __init__(self, source: Any, encoder: Encoder, field: str | int | None, batch: int) -> None:
        super().__init__()
        self.source = source
        self.encoder = encoder
        self.field = field
        self.batch = batch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the dataset of texts, if it has epochs."""
        if callable(set_epoch := getattr(self.source, "set_epoch", None)):
            set_epoch(epoch)

    def __copy__(self) -> Self:
        own = copied_stream(self)
        own.source = copy_for_worker(self.source)
        return own

    def __iter__(self) -> Iterator[NDArray[np.integer]]:
        iterator = iter(self.source)
        is_resumable = is_stateful(iterator) or is_stateful(self.source)
        return (ResumableTokenPass if is_resumable else TokenPass)(self, iterator)

    def __repr__(self) -> str:
        name = tokenizer_name(self.encoder.tokenizer)
        return f"{type(self).__name__}({self.source!r}, {name}, {self.encoder.dtype}[tokens])"


class SharedTokenizedStream(TokenizedStream, StreamSource):
    """The same for a dataset whose samples the loader shares out: a worker tokenizes only its own texts."""


class ShardedTokenizedStream(TokenizedStream, ShardedSource):
    """The same for a dataset that splits itself over workers and ranks."""

    def set_worker(self, number: int, count: int) -> None:
        self.source.set_worker(number, count)
