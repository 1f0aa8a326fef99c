"""Token files in object stores and on web servers, read by range.

A block of tokens is a few kilobytes, and every request takes as long as some hundred kilobytes. So nearby blocks of a
batch share a request, and all requests of a batch are sent at the same time. That suits random orders, whose blocks
are far apart.

Orders that stay within a part of a file for a while request the same piece again and again. Such a piece, as large as
those of the disk cache, is fetched as a whole and kept in memory once single requests for it have cost a good part of
that.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np

from feedline.datasets.framework.bounded_cache import BoundedCache
from feedline.datasets.framework.paths import Paths
from feedline.datasets.framework.places import Place, found_places
from feedline.datasets.framework.remote_files import RemoteFile, is_remote
from feedline.datasets.storage import disk_cache, ranges
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.ranges import Span, coalesced, side_by_side
from feedline.datasets.storage.remote import Remote
from feedline.datasets.storage.storage import Storage
from feedline.system.handle import Handle
from feedline.system.sizes import check_size, most_bytes
from feedline.text.mapped import Numbers, Tokens
from feedline.text.token_file import ENDING, HEADER_BYTES, TokenFile, described, find_tokens, offsets_in

_WORTH = 2
"""A piece is fetched as a whole once single requests have cost this fraction of it. A guess: the blocks of a random
order rarely reach it, and blocks that reach into this piece from the one before never do."""
_UNLIMITED = 1 << 62


def find_files(paths: Paths, raw_dtype: object, remote: Remote) -> tuple[TokenFile, ...]:
    """Find token files, local and remote ones, and read their headers, as `find_tokens` does."""
    # Without the cache, which would fetch the first megabytes of every file.
    with closing(Storage(replace(remote, cache=None))) as storage:
        places = found_places(paths, storage, (ENDING,))
        find = functools.partial(_find, storage, raw_dtype)
        return tuple(side_by_side(find, places, remote.requests))


def _find(storage: Storage, raw_dtype: object, place: Place) -> TokenFile:
    if not is_remote(place.address):
        return find_tokens(place.address, raw_dtype)
    with closing(storage.open(place.address, place.version)) as blob:
        start = blob.read(0, min(HEADER_BYTES, blob.size))
        blob.check()
    found = described(blob.name, blob.size, start, raw_dtype)
    return replace(found, remote=RemoteFile(blob.name, blob.size, blob.tag, place.address))


@dataclass(slots=True)
class Part:
    """Bytes in one piece of a file, and the array that their tokens belong in."""

    shard: int
    """The number of the file."""
    start: int
    stop: int
    out: Tokens

    def give(self, content: bytes, first: int, file: TokenFile) -> None:
        """Copy the tokens from content that begins at byte `first` of the file."""
        self.out[:] = np.frombuffer(content, file.dtype, len(self.out), self.start - first)


class RemoteTokens:
    """Reads tokens and document offsets of remote files. Threads may share it.

    It is pickled without anything that it has read.

    Args:
        files: all files of the dataset, also local ones, which are not read here.
        remote: how they are read.
        cache_bytes: how much of the files each process keeps in memory.
    """

    def __init__(self, files: Sequence[TokenFile], remote: Remote, cache_bytes: int) -> None:
        self._files = files
        self._requests = remote.requests
        addresses = [file.remote.address for file in files if file.remote is not None]
        self._storage: Handle[Storage] = Handle(
            functools.partial(Storage, remote, addresses, is_common=True), Storage.close
        )
        self._pieces = BoundedCache[tuple[int, int], bytes](cache_bytes)
        """By the number of the file, and of the piece in it."""
        self._costs = BoundedCache[tuple[int, int], int](cache_bytes // disk_cache.PIECE_BYTES)
        """What recent requests for parts of other pieces have cost, in bytes."""
        self._offsets = BoundedCache[int, Numbers](_UNLIMITED)

    def parts(self, number: int, start: int, out: Tokens) -> Iterator[Part]:
        """Yield what `fill` must read to fill `out` with tokens of a file, from `start` on."""
        file, size = self._files[number], disk_cache.PIECE_BYTES
        first = begin = file.tokens_at + start * file.token_bytes
        end = begin + len(out) * file.token_bytes
        while begin < end:
            stop = min(end, (begin // size + 1) * size)
            places = slice((begin - first) // file.token_bytes, (stop - first) // file.token_bytes)
            yield Part(number, begin, stop, out[places])
            begin = stop

    def fill(self, parts: Iterable[Part]) -> None:
        """Copy tokens into the arrays of these parts. Raises SourceError, SourceChanged: they cannot be read."""
        missing: dict[tuple[int, int], list[Part]] = {}
        for part in parts:
            number = part.start // disk_cache.PIECE_BYTES
            piece = self._pieces.get((part.shard, number))
            if piece is None:
                missing.setdefault((part.shard, number), []).append(part)
            else:
                part.give(piece, number * disk_cache.PIECE_BYTES, self._files[part.shard])
        if not missing:
            return
        wholes = [self._whole(key, own) for key, own in missing.items() if self._is_worth_whole(key, own)]
        taken = {(span.shard, span.start // disk_cache.PIECE_BYTES) for span in wholes}
        singles = [part for key, own in missing.items() if key not in taken for part in own]
        spans = [(span, True) for span in wholes]
        spans += [(span, False) for span in coalesced(singles, is_local=lambda number: False)]
        with ExitStack() as stack:
            numbers = {number for number, _ in missing}
            blobs = {number: stack.enter_context(closing(self._open(number))) for number in numbers}
            side_by_side(lambda one: self._read(blobs[one[0].shard], *one), spans, self._requests)
            for number in {part.shard for part in singles}:
                blobs[number].check()

    def _whole(self, key: tuple[int, int], parts: list[Part]) -> Span[Part]:
        number, start = key[0], key[1] * disk_cache.PIECE_BYTES
        return Span(number, start, min(start + disk_cache.PIECE_BYTES, self._files[number].size), parts)

    def _is_worth_whole(self, key: tuple[int, int], parts: list[Part]) -> bool:
        cost = (self._costs.get(key) or 0) + sum(part.stop - part.start + ranges.REMOTE_GAP for part in parts)
        whole = self._whole(key, parts)
        if cost < (whole.stop - whole.start) // _WORTH or self._pieces.limit < disk_cache.PIECE_BYTES:
            self._costs.put(key, cost)
            return False
        return True

    def _read(self, blob: Blob, span: Span[Part], is_whole: bool) -> None:
        def fetch() -> tuple[bytes, int]:
            content = blob.read(span.start, span.stop)
            blob.check()  # cached pieces must not come from two versions
            return content, len(content)

        if is_whole:
            content = self._pieces.load((span.shard, span.start // disk_cache.PIECE_BYTES), fetch)
        else:
            content = blob.read(span.start, span.stop)
        for part in span.ranges:
            part.give(content, span.start, self._files[span.shard])

    def _open(self, number: int) -> Blob:
        remote = self._files[number].remote
        assert remote is not None  # callers have checked that
        return self._storage.get().open(remote.address, remote.version)

    def offsets(self, number: int) -> Numbers:
        """Return the document offsets of a file, which are read once in each process.

        Raises CorruptSource: they are damaged; SourceError, SourceChanged: they cannot be read.
        """
        return self._offsets.load(number, functools.partial(self._read_offsets, number))

    def load_offsets(self, numbers: Iterable[int]) -> None:
        """Read the missing document offsets of several files concurrently."""
        missing = [number for number in numbers if self._offsets.get(number) is None]
        side_by_side(self.offsets, missing, self._requests)

    def _read_offsets(self, number: int) -> tuple[Numbers, int]:
        file = self._files[number]
        check_size(f"The list of documents of {file.path}", file.size - file.offsets_at, limit=most_bytes())
        with closing(self._open(number)) as blob:
            tail = blob.read(file.offsets_at, file.size)
            blob.check()
        return offsets_in(file, tail), 1

    def close(self) -> None:
        """Close connections, and drop tokens that are kept in memory."""
        self._storage.close()
        self._pieces.clear()
        self._costs.clear()
