"""Several token files as one sequence of tokens: any part of it, and where documents begin in it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.paths import Paths, found_files
from feedline.datasets.storage import disk_cache
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import protocol_of
from feedline.errors import BadOption, CorruptSource
from feedline.system.sizes import check_size, most_bytes
from feedline.text.mapped import MappedTokens, Numbers, Tokens
from feedline.text.token_file import ENDING, TokenFile, find_tokens

if TYPE_CHECKING:
    from feedline.text.remote import Part, RemoteTokens

_OPEN_FILES = 256
"""The most files that a process keeps open; each takes a file descriptor."""


@dataclass(frozen=True, eq=False)
class Edges:
    """The places in windows at which documents begin, except the first place of each window."""

    rows: Numbers
    places: Numbers
    """Each at least 1; ascending in each row, without repeats."""
    row_count: int

    @classmethod
    def of(cls, rows: Numbers, places: Numbers, row_count: int, width: int) -> Edges:
        """Sort edges and remove duplicates, which empty documents cause."""
        flat = np.unique(rows * width + places)
        return cls(flat // width, flat % width, row_count)

    def segments(self, block: int) -> Segments:
        """Divide the first `block` places of each row into segments, one for each document."""
        inside = self.places < block
        firsts = np.arange(self.row_count, dtype=np.int64) * block
        others = self.rows[inside] * block + self.places[inside]
        starts = np.sort(np.concatenate([firsts, others]))
        lengths = np.diff(starts, append=self.row_count * block)
        return Segments(starts, lengths, np.searchsorted(starts, firsts), block)


@dataclass(frozen=True, eq=False)
class Segments:
    """The documents in rows of `block` places, all rows one after the other."""

    starts: Numbers
    lengths: Numbers
    firsts: Numbers
    """Which segment is the first of each row."""
    block: int

    def numbers(self) -> NDArray[np.int32]:
        """Return, for each place, the number of its segment in its row, from 1: packed rows use 0 for padding."""
        counts = np.diff(self.firsts, append=len(self.starts))
        numbers = np.arange(1, len(self.starts) + 1) - np.repeat(self.firsts, counts)
        return np.repeat(numbers.astype(np.int32), self.lengths).reshape(-1, self.block)

    def positions(self, lead: Numbers | None = None) -> Numbers:
        """Return, for each place, its distance from the start of its segment.

        `lead` is the number of tokens of its first document that come before each row.
        """
        starts = self.starts
        if lead is not None:
            starts = starts.copy()
            starts[self.firsts] -= lead
        places = np.arange(len(self.firsts) * self.block, dtype=np.int64)
        return (places - np.repeat(starts, self.lengths)).reshape(-1, self.block)


class TokenSequence:
    """The tokens of some files, one after the other. Each file begins a new document.

    It is pickled as the descriptions of its files; each process maps them, or connects, when it first reads them.

    Args:
        paths: the files.
        raw_dtype: "uint16" or "uint32", to accept files of bare tokens.
        remote: how remote files are read.
        cache_bytes: how much of remote files each process keeps in memory.
    """

    def __init__(
        self, paths: Paths, raw_dtype: object = None, remote: Remote | None = None, cache_bytes: int = 0
    ) -> None:
        self._remote: RemoteTokens | None = None
        self.cache_bytes = cache_bytes
        given = list(paths) if isinstance(paths, Iterable) and not isinstance(paths, str) else [paths]
        if any(isinstance(path, str) and protocol_of(path) for path in given):
            from feedline.text.remote import RemoteTokens, find_files  # most programs do not need it

            remote = remote or Remote()
            self.files = find_files(given, raw_dtype, remote)
            self._remote = RemoteTokens(self.files, remote, cache_bytes)
        else:
            self.files = tuple(find_tokens(path, raw_dtype) for path in found_files(given, (ENDING,)))
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
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """The type that holds the tokens of all files, in the byte order of this machine."""
        return max((file.dtype.newbyteorder("=") for file in self.files), key=lambda dtype: dtype.itemsize)

    def mapped(self, number: int) -> MappedTokens:
        """Return a file, open in this process."""
        return self._open.load(number, lambda: (MappedTokens(self.files[number]), 1))

    def close(self) -> None:
        """Unmap all files, and close connections. Reading opens them again."""
        self._open.clear()
        if self._remote is not None:
            self._remote.close()

    def windows(self, starts: Numbers, width: int) -> Tokens:
        """Return `width` tokens from each start, one row per start. All of them must be in the sequence."""
        if len(self.files) == 1 and self._remote is None:
            return self.mapped(0).windows(starts, width)
        found: Tokens = np.empty((len(starts), width), self.dtype)
        parts: list[Part] = []
        for number, rows in self._rows_by_file(starts, starts + width):
            local, size = starts[rows] - self._begins[number], self.files[number].token_count
            if self.files[number].remote is None:
                if local.min() >= 0 and local.max() + width <= size:
                    found[rows] = self.mapped(number).windows(local, width)
                    continue
                whole = (local >= 0) & (local + width <= size)
                found[rows[whole]] = self.mapped(number).windows(local[whole], width)
                rows, local = rows[~whole], local[~whole]  # those that other files have a part of
            firsts = np.maximum(local, 0)
            counts = np.maximum(np.minimum(local + width, size) - firsts, 0)
            ranges = zip(rows.tolist(), (firsts - local).tolist(), firsts.tolist(), counts.tolist(), strict=True)
            for row, shift, first, count in ranges:
                out = found[row, shift : shift + count]
                if self._remote is None or self.files[number].remote is None:
                    out[:] = self.mapped(number).tokens[first : first + count]
                else:
                    parts += self._remote.parts(number, first, out)
        if self._remote is not None:
            self._remote.fill(parts)  # all requests are sent at the same time
        return found

    def load(self, start: int, stop: int) -> None:
        """Read pieces of remote files that tokens from one place to another are in, and keep them in memory."""
        if self._remote is None:
            return
        parts: list[Part] = []
        for number, file in enumerate(self.files):
            begin = int(self._begins[number])
            first, last = max(start - begin, 0), min(stop - begin, file.token_count)
            if file.remote is not None and first < last:
                parts += self._remote.parts(number, first, np.empty(last - first, file.dtype))
        self._remote.fill(parts)

    def _rows_by_file(self, starts: Numbers, stops: Numbers) -> Iterator[tuple[int, Numbers]]:
        """Yield each file that contains tokens of some rows, and these rows."""
        first = np.searchsorted(self._ends, starts, side="right")
        last = np.searchsorted(self._ends, stops - 1, side="right")
        numbers = np.unique(np.concatenate([first, last]))
        if (last - first > 1).any():  # a row spans small files as a whole
            numbers = np.arange(numbers[0], numbers[-1] + 1)
        for number in numbers.tolist():
            rows = np.flatnonzero((first <= number) & (number <= last))
            if len(rows):
                yield number, rows

    def load_offsets(self, numbers: Iterable[int] | None = None) -> None:
        """Read the document offsets of some files, or of all, if they are remote: concurrently, not one by one."""
        if self._remote is not None:
            some = range(len(self.files)) if numbers is None else numbers
            self._remote.load_offsets(number for number in some if self.files[number].remote is not None)

    def _offsets(self, number: int) -> Numbers:
        if self._remote is not None and self.files[number].remote is not None:
            return self._remote.offsets(number)
        return self.mapped(number).offsets

    def edges(self, starts: Numbers, width: int) -> Edges:
        """Return where documents begin in `width` tokens from each start, after the first of these tokens.

        Raises CorruptSource: the document offsets are damaged.
        """
        found_rows, found_places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        by_file = list(self._rows_by_file(starts, starts + width))
        self.load_offsets(number for number, _ in by_file)
        for number, rows in by_file:
            offsets, local = self._offsets(number), starts[rows] - self._begins[number]
            low = np.searchsorted(offsets, local, side="right")
            counts = np.maximum(np.searchsorted(offsets, local + width, side="left") - low, 0)
            which = np.repeat(low - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
            places = offsets[which] - np.repeat(local, counts)
            if len(places) and not (places.min() >= 1 and places.max() < width):
                raise _disordered(self.files[number])
            found_rows.append(np.repeat(rows, counts))
            found_places.append(places)
        return Edges.of(np.concatenate(found_rows), np.concatenate(found_places), len(starts), width)

    def leads(self, starts: Numbers) -> Numbers:
        """Return how far from the beginning of its document each token is.

        Raises CorruptSource: the document offsets are damaged.
        """
        found = np.zeros(len(starts), np.int64)
        for number, rows in self._rows_by_file(starts, starts + 1):
            offsets, local = self._offsets(number), starts[rows] - self._begins[number]
            place = np.searchsorted(offsets, local, side="right") - 1
            found[rows] = local - offsets[place]
            if (place < 0).any() or (found[rows] < 0).any():
                raise _disordered(self.files[number])
        return found

    def document_ends(self) -> Numbers:
        """Return the number of documents in each file and all files before it."""
        return np.cumsum([file.document_count or 0 for file in self.files], dtype=np.int64)

    def documents(self, numbers: Sequence[int], places: Sequence[int]) -> list[Tokens]:
        """Return documents, each given by its file and its place there; those of a mapped file are views.

        Raises CorruptSource: offsets are damaged.
        """
        self.load_offsets(set(numbers))
        found: list[Tokens] = []
        parts: list[Part] = []
        for number, place in zip(numbers, places, strict=True):
            file = self.files[number]
            start, stop = self._offsets(number)[place : place + 2].tolist()
            if not 0 <= start <= stop <= file.token_count:
                raise _disordered(file)
            if self._remote is None or file.remote is None:
                found.append(self.mapped(number).tokens[start:stop])
                continue
            what = f"Document {place} of {file.path}"
            check_size(what, (stop - start) * file.token_bytes, limit=most_bytes())  # a server may claim any size
            found.append(np.empty(stop - start, file.dtype))
            parts += self._remote.parts(number, start, found[-1])
        if self._remote is not None:
            self._remote.fill(parts)
        return found

    def lengths(self) -> Numbers:
        """Return the number of tokens of each document. Raises CorruptSource: offsets are damaged."""
        parts = [np.empty(0, np.int64)]
        self.load_offsets()
        for number, file in enumerate(self.files):
            parts.append(np.diff(self._offsets(number)))
            if (parts[-1] < 0).any() or parts[-1].sum() != file.token_count:
                raise _disordered(file)
        return np.concatenate(parts)

    def piece_ends(self) -> Numbers:
        """Return where pieces of the files end, as places in the sequence: pieces of the size that caches have."""
        found = [np.empty(0, np.int64)]
        for file, begin in zip(self.files, self._begins.tolist(), strict=True):
            size = disk_cache.PIECE_BYTES
            cuts = np.arange((file.tokens_at // size + 1) * size, file.tokens_end, size)
            found += [begin + (cuts - file.tokens_at) // file.token_bytes, np.array([begin + file.token_count])]
        return np.concatenate(found)

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
                "stands for different tokens. Write one of them again."
            )
