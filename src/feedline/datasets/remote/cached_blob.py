"""Remote blobs that are read through a disk cache, piece by piece.

A stream of parts of blobs, such as row groups, may need little of the pieces at the edges of a part. Once there is no
room left, it fetches just these bytes, and only pieces of which it needs at least half replace others.
"""

from __future__ import annotations

from feedline.datasets.remote import disk_cache
from feedline.datasets.remote.blob import Blob
from feedline.datasets.remote.foresight import Foresight


class CachedBlob(Blob):
    """A blob that reads through a disk cache, piece by piece. Closing it closes the underlying blob.

    Args:
        blob: the underlying blob.
        cache: where its pieces are cached.
        foresight: when they are needed next; None for random access.
    """

    def __init__(self, blob: Blob, cache: disk_cache.DiskCache, foresight: Foresight | None = None) -> None:
        self.name, self.address, self.size, self.tag = blob.name, blob.address, blob.size, blob.tag
        self._blob = blob
        self._cache = cache
        self._foresight = foresight

    def read(self, start: int, stop: int) -> bytes:
        numbers = range(start // disk_cache.PIECE_BYTES, -(-stop // disk_cache.PIECE_BYTES))
        parts = [self._part(number, start, stop) for number in numbers]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, number: int, start: int, stop: int) -> bytes:
        """Return the bytes of a piece that are in a range."""
        first = number * disk_cache.PIECE_BYTES
        size = min(disk_cache.PIECE_BYTES, self.size - first)
        start, stop = max(start, first), min(stop, first + size)
        path = self._cache.path_of(self, number)
        found = self._cache.last(path)
        foresight = self._foresight
        if found is None and stop - start < size // 2 and foresight is not None and not foresight.reads_whole:
            found = self._cache.read(path, size)
            if found is None and self._cache.is_full():
                return self._blob.read(start, stop)
        if found is None:
            found = self._cache.fetched(path, size, lambda: self._blob.read(first, first + size), foresight)
        self._cache.keep_last(path, found)
        return found[start - first : stop - first]

    def check(self) -> None:
        self._blob.check()

    def close(self) -> None:
        self._blob.close()
