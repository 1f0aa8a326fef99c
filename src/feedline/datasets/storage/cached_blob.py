"""Remote blobs that are read through a disk cache, piece by piece.

While the cache has room, a missing piece is fetched as a whole. Once it is full, a piece is fetched only if enough of
it is needed now (`Foresight.worth`). Other reads fetch just their own bytes: those of random access, and of a stream of
parts of blobs, such as row groups, if it needs less than half of the piece.
"""

from __future__ import annotations

from pathlib import Path

from feedline.datasets.storage import disk_cache
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.foresight import Foresight


class CachedBlob(Blob):
    """A blob that reads through a disk cache, piece by piece. Closing it closes the underlying blob.

    Args:
        blob: the underlying blob.
        cache: where its pieces are cached.
        foresight: when they are needed next.
    """

    def __init__(self, blob: Blob, cache: disk_cache.DiskCache, foresight: Foresight) -> None:
        self.name, self.address, self.size, self.tag = blob.name, blob.address, blob.size, blob.tag
        self._blob = blob
        self._cache = cache
        self._foresight = foresight

    def read(self, start: int, stop: int) -> bytes:
        parts, at = list[bytes](), start  # what was read, up to `at`
        for number in range(start // disk_cache.PIECE_BYTES, -(-stop // disk_cache.PIECE_BYTES)):
            first = number * disk_cache.PIECE_BYTES
            begin, end = max(start, first), min(stop, first + disk_cache.PIECE_BYTES)
            part = self._part(number, begin - first, end - first)
            if part is not None:
                parts += [self._fetched(at, begin), part] if at < begin else [part]
                at = end
        if at < stop:
            parts.append(self._fetched(at, stop))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, number: int, start: int, stop: int) -> bytes | None:
        """Return some bytes of a piece from the cache, which may fetch it; None if it should not."""
        first = number * disk_cache.PIECE_BYTES
        size = min(disk_cache.PIECE_BYTES, self.size - first)
        path = self._cache.path_of(self, number)
        found = self._cache.last(path)
        if found is not None:
            return found[start:stop]
        if stop - start >= size * self._foresight.worth:
            return self._whole(path, first, size)[start:stop]
        part = self._cache.read_part(path, size, start, stop)
        if part is not None:
            return part
        with self._cache.reserved(path, self._foresight) as has_room:
            return self._whole(path, first, size)[start:stop] if has_room else None

    def _whole(self, path: Path, first: int, size: int) -> bytes:
        found = self._cache.fetched(path, size, lambda: self._blob.read(first, first + size), self._foresight)
        self._cache.keep_last(path, found)
        return found

    def _fetched(self, start: int, stop: int) -> bytes:
        """Fetch bytes that are not stored."""
        data = self._blob.read(start, stop)
        self._cache.count_uncached(stop - start)
        return data

    def check(self) -> None:
        self._blob.check()

    def close(self) -> None:
        self._blob.close()
