"""Several token files as one sequence of tokens: any part of it, and where documents begin in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import numpy as np

from feedline.datasets.bounded_cache import BoundedCache
from feedline.datasets.paths import Paths, found_files
from feedline.errors import BadOption, CorruptSource
from feedline.text.boundaries import Edges
from feedline.text.mapped import MappedTokens, Numbers, Tokens
from feedline.text.token_file import ENDING, TokenFile, find_tokens

_OPEN_FILES = 256
"""Most files that a process has open at a time; each takes a file descriptor."""


class TokenSequence:
    """The tokens of some files, one after the other. Each file begins a new document.

    It is pickled as the descriptions of its files; each process maps them when it first reads them.
    """

    def __init__(self, paths: Paths, raw_dtype: object = None) -> None:
        self.files = tuple(find_tokens(path, raw_dtype) for path in found_files(paths, (ENDING,)))
        _check_tokenizers(self.files)
        self._ends = np.cumsum([file.token_count for file in self.files], dtype=np.int64)
        self._begins = self._ends - [file.token_count for file in self.files]
        self._open: BoundedCache[int, MappedTokens] = BoundedCache(_OPEN_FILES)

    @property
    def token_count(self) -> int:
        """The number of tokens in all files."""
        return int(self._ends[-1])

    @property
    def has_documents(self) -> bool:
        """False if a file of bare tokens is among the files."""
        return all(file.has_header for file in self.files)

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type that holds the tokens of all files, in the byte order of this machine."""
        return max((file.dtype.newbyteorder("=") for file in self.files), key=lambda dtype: dtype.itemsize)

    def mapped(self, number: int) -> MappedTokens:
        """Return a file, open in this process."""
        return self._open.load(number, lambda: (MappedTokens(self.files[number]), 1))

    def close(self) -> None:
        """Unmap all files. Reading maps them again."""
        self._open.clear()

    def windows(self, starts: Numbers, width: int) -> Tokens:
        """Return `width` tokens from each start, one row per start. All of them must be in the sequence."""
        if len(self.files) == 1:
            return self.mapped(0).windows(starts, width)
        found: Tokens = np.empty((len(starts), width), self.dtype)
        for number, rows in self._rows_by_file(starts, starts + 1):
            begin, end = int(self._begins[number]), int(self._ends[number])
            whole = rows[starts[rows] + width <= end]
            if len(whole):
                found[whole] = self.mapped(number).windows(starts[whole] - begin, width)
            for row in rows[starts[rows] + width > end].tolist():
                self._across(number, int(starts[row]), found[row])
        return found

    def _across(self, number: int, start: int, out: Tokens) -> None:
        """Fill `out` with tokens that begin in one file and end in another."""
        filled = 0
        while filled < len(out):
            begin, end = int(self._begins[number]), int(self._ends[number])
            count = min(end - start, len(out) - filled)
            if count > 0:
                out[filled : filled + count] = self.mapped(number).tokens[start - begin : start - begin + count]
                filled, start = filled + count, start + count
            number += 1

    def _rows_by_file(self, starts: Numbers, stops: Numbers) -> Iterator[tuple[int, Numbers]]:
        """Yield each file that some rows have tokens of, and these rows."""
        first = np.searchsorted(self._ends, starts, side="right")
        last = np.searchsorted(self._ends, stops - 1, side="right")
        numbers = np.unique(np.concatenate([first, last]))
        if (last - first > 1).any():  # a row spans small files as a whole
            numbers = np.arange(numbers[0], numbers[-1] + 1)
        for number in numbers.tolist():
            rows = np.flatnonzero((first <= number) & (number <= last))
            if len(rows):
                yield number, rows

    def edges(self, starts: Numbers, width: int) -> Edges:
        """Return where documents begin in `width` tokens from each start, after the first of these tokens.

        Raises CorruptSource: the document offsets are damaged.
        """
        found_rows, found_places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for number, rows in self._rows_by_file(starts, starts + width):
            mapped = self.mapped(number)
            offsets, local = mapped.offsets, starts[rows] - self._begins[number]
            low = np.searchsorted(offsets, local, side="right")
            counts = np.maximum(np.searchsorted(offsets, local + width, side="left") - low, 0)
            which = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            places = offsets[which] - np.repeat(local, counts)
            if len(places) and not (places.min() >= 1 and places.max() < width):
                raise _disordered(mapped.file)
            found_rows.append(np.repeat(rows, counts))
            found_places.append(places)
        return Edges.of(np.concatenate(found_rows), np.concatenate(found_places), len(starts), width)

    def leads(self, starts: Numbers) -> Numbers:
        """Return how far from the beginning of its document each token is.

        Raises CorruptSource: the document offsets are damaged.
        """
        found = np.zeros(len(starts), np.int64)
        for number, rows in self._rows_by_file(starts, starts + 1):
            mapped = self.mapped(number)
            offsets, local = mapped.offsets, starts[rows] - self._begins[number]
            place = np.searchsorted(offsets, local, side="right") - 1
            found[rows] = local - offsets[place]
            if (place < 0).any() or (found[rows] < 0).any():
                raise _disordered(mapped.file)
        return found

    def document_ends(self) -> Numbers:
        """Return the number of documents in each file and all files before it."""
        return np.cumsum([file.document_count or 0 for file in self.files], dtype=np.int64)

    def document(self, number: int, place: int) -> Tokens:
        """Return a document of a file, as a view of the mapped file. Raises CorruptSource: offsets are damaged."""
        mapped = self.mapped(number)
        start, stop = mapped.offsets[place : place + 2].tolist()
        if not 0 <= start <= stop <= mapped.file.token_count:
            raise _disordered(mapped.file)
        return mapped.tokens[start:stop]

    def lengths(self) -> Numbers:
        """Return the number of tokens of each document. Raises CorruptSource: offsets are damaged."""
        parts = [np.empty(0, np.int64)]
        for number, file in enumerate(self.files):
            parts.append(np.diff(self.mapped(number).offsets))
            if (parts[-1] < 0).any() or parts[-1].sum() != file.token_count:
                raise _disordered(file)
        return np.concatenate(parts)

    def __getstate__(self) -> dict[str, object]:
        return dict(self.__dict__)  # the cache of open files pickles as an empty one


def _disordered(file: TokenFile) -> CorruptSource:
    return CorruptSource(
        f"The list of documents of {file.path} is damaged: it is not in order, or reaches beyond the "
        f"{file.token_count:,} tokens. Get another copy, or write it again; feedline.text.verify(path) checks one."
    )


def _check_tokenizers(files: Sequence[TokenFile]) -> None:
    """Refuse files of different tokenizers, whose tokens mean different things."""
    known = [file for file in files if file.tokenizer_hash]
    for file in known[1:]:
        if file.tokenizer_hash != known[0].tokenizer_hash:
            raise BadOption(
                f"{os.path.basename(known[0].path)} and {os.path.basename(file.path)} were written with different "
                f"tokenizers, {known[0].tokenizer!r} and {file.tokenizer!r} (or versions of them), so the same number "
                "is another token in each. Write one of them again."
            )
