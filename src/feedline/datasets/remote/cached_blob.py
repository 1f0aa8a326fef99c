"""Remote blobs that are read through a disk cache, piece by piece.

While the cache has room, a missing piece is fetched as a whole. Once it is full, a piece has to be worth it, or a read
fetches just its own bytes. Random access always does so. So does a stream of parts of blobs, such as row groups, if it
needs less than half of a piece.
"""

from __future__ import annotations

from pathlib import Path

from feedline.datasets.remote import disk_cache
from feedline.datasets.remote.blob import Blob
from feedline.datasets.remote.foresight import Foresight, RandomAccess

_UNKNOWN = RandomAccess()


class CachedBlob(Blob):
    """A blob that reads through a disk cache, piece by piece. Closing it closes the underlying blob.

    Args:
        blob: the underlying blob.
        cache: where its pieces are cached.
        foresight: when they are needed next; None if the files of the dataset are not known yet.
    """

    def __init__(self, blob: Blob, cache: disk_cache.DiskCache, foresight: Foresight | None = None) -> None:
        self.name, self.address, self.size, self.tag = blob.name, blob.address, blob.size, blob.tag
        self._blob = blob
        self._cache = cache
        self._foresight = foresight or _UNKNOWN

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
        if found is None and stop - start < size * self._foresight.worth:
            part = self._cache.read_part(path, size, start - first, stop - first)
            if part is not None:
                return part
            with self._cache.reserved(self._foresight) as is_stored:
                if is_stored:
                    return self._whole(path, first, size)[start - first : stop - first]
            self._cache.count_uncached(stop - start)
            return self._blob.read(start, stop)
        if found is None:
            found = self._whole(path, first, size)
        return found[start - first : stop - first]

    def _whole(self, path: Path, first: int, size: int) -> bytes:
        found = self._cache.fetched(path, size, lambda: self._blob.read(first, first + size), self._foresight)
        self._cache.keep_last(path, found)
        return found

    def check(self) -> None:
        self._blob.check()

    def close(self) -> None:
        self._blob.close()
