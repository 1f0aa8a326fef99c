"""The documents of token files as a dataset."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from feedline.datasets.framework.source import Indices, Source
from feedline.errors import BadOption
from feedline.text.mapped import Numbers
from feedline.text.sequence import TokenSequence


class TokenDocuments(Source):
    """The documents of a `TokenDataset`; each sample is the array of its tokens. `TokenDataset.documents` makes it.

    Documents differ in length: batch them with a collate function such as `feedline.collate.pad()`, or pack several
    into one row.

    Example:
        >>> import tempfile
        >>> from feedline.text import TokenDataset, TokenWriter
        >>> path = f"{tempfile.mkdtemp()}/tokens.bin"
        >>> with TokenWriter(path, dtype="uint16") as writer:
        ...     writer.write([[5, 6, 7], [8]])
        >>> documents = TokenDataset(path).documents
        >>> documents
        TokenDocuments(2 samples of int64[tokens])
        >>> documents[0].tolist(), documents.lengths.tolist()
        ([5, 6, 7], [3, 1])
    """

    _lazy = ("_lengths",)

    def __init__(self, sequence: TokenSequence, dtype: np.dtype[np.integer]) -> None:
        super().__init__()
        bare = next((file.path for file in sequence.files if not file.has_header), None)
        if bare is not None:
            raise BadOption(
                f"{bare} is a file of bare tokens, which does not list its documents. Write a token file with "
                "feedline.text.write_tokens or TokenWriter."
            )
        self._sequence = sequence
        self.dtype = dtype
        self._ends = sequence.document_ends()
        self._lengths: Numbers | None = None

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def lengths(self) -> Numbers:
        """The number of tokens of each document; int64. Computed once in each process."""
        if self._lengths is None:
            self._lengths = self._sequence.lengths()
        return self._lengths

    def _read(self, indices: Indices) -> list[object]:
        numbers = np.searchsorted(self._ends, indices, side="right")
        places = indices - np.where(numbers > 0, self._ends[numbers - 1], 0)
        found = self._sequence.documents(numbers.tolist(), places.tolist())
        return [document.astype(self.dtype) for document in found]

    def _stored_in(self) -> Iterable[str]:
        return [file.path for file in self._sequence.files]

    def close(self) -> None:
        """Close the files. Reading a document opens them again."""
        self._sequence.close()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lengths": None}

    def _form(self) -> str:
        return f"{self.dtype}[tokens]"
