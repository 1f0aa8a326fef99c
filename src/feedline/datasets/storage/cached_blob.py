"""A remote blob that is read through a disk cache."""

from __future__ import annotations

from pathlib import Path

from feedline.datasets.storage import disk_cache
from feedline.datasets.storage.blob import Blob
from feedline.datasets.storage.disk_cache import DiskCache


class CachedBlob(Blob):
    """A blob that reads through a disk cache, piece by piece. Closing it closes the underlying blob.

    Args:
        blob: the underlying blob.
        cache: where its pieces are cached.
        is_common: True if several processes read the same pieces at about the same time.
    """

    def __init__(self, blob: Blob, cache: DiskCache, *, is_common: bool = False) -> None:
        self.name, self.address, self.size, self.tag = blob.name, blob.address, blob.size, blob.tag
        self._blob = blob
        self._cache = cache
        self._pieces = str(cache.pieces_of(blob))
        self._is_common = is_common

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
        cache, first = self._cache, number * disk_cache.PIECE_BYTES
        size, path = min(disk_cache.PIECE_BYTES, self.size - first), Path(f"{self._pieces}-{number}")
        found = cache.read(path, size, start, stop)
        if found is not None:
            return found
        is_worth = self._is_common and 2 * (stop - start) >= size
        if not is_worth and not cache.has_room_for(path):
            return None
        whole = cache.fetched(path, size, lambda: self._blob.read(first, first + size), is_worth=is_worth)
        return None if whole is None else whole[start:stop]

    def _fetched(self, start: int, stop: int) -> bytes:
        """Fetch bytes that are not stored."""
        data = self._blob.read(start, stop)
        self._cache.count_uncached(stop - start)
        return data

    def check(self) -> None:
        self._blob.check()

    def close(self) -> None:
        self._blob.close()
