"""A file that is mapped into memory as a whole, checked before every use.

Reading beyond the end of a mapped file kills the process (SIGBUS). So every range is compared with the size of the file
when it was mapped, and `check` notices a file that was written to since. What remains is a file that is truncated
between the check and the read.
"""

from __future__ import annotations

import mmap
import os
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.errors import SourceChanged, SourceError
from feedline.system.failures import words
from feedline.system.handle import ClosedWhenDeleted
from feedline.system.sizes import check_size

Number = TypeVar("Number", bound=np.generic)


class MappedFile(ClosedWhenDeleted):
    """A read-only map of a file. Raises SourceError: the file cannot be opened."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = -1
        self._memory: mmap.mmap | bytes = b""
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._stamp = self._now()
            self.size = self._stamp[0]
            if self.size:  # an empty file cannot be mapped
                self._memory = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ)
        except OSError as exc:
            self.close()
            raise SourceError(f"{path} cannot be opened: {words(exc)}. Is the path right?") from exc

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """Raise SourceChanged if the file was written to since it was opened."""
        if self._now() != self._stamp:
            raise SourceChanged(
                f"{self.path} was written to while it was being read: it had {self._stamp[0]} bytes and now has "
                f"{self._now()[0]}. Create the dataset again. Do not write to files that are being read: write "
                "others and rename them."
            )

    def array(self, dtype: type[Number] | np.dtype[Number], count: int, offset: int = 0) -> NDArray[Number]:
        """Return numbers of the file, without copying them. Raises CorruptSource: they are not all there."""
        kind = np.dtype(dtype)
        check_size(self.path, offset + count * kind.itemsize, held=self.size)
        return np.frombuffer(self._memory, kind, count, offset) if count else np.empty(0, kind)

    def close(self) -> None:
        """Close the file. The map stays until the last array that uses it is gone."""
        self._memory = b""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _needs_closing(self) -> bool:
        return bool(self.__dict__.get("_descriptor", -1) >= 0)
