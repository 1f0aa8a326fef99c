"""Bytes at offsets that several processes share, in anonymous memory or a file; and counters in such memory.

Threads and processes read and write at the same time. Nothing here orders these accesses: a reader may see partial
writes, and must detect them by a checksum. Only `locked` excludes others.

The lock is `flock` on a descriptor that each process has opened for itself, so it ends with the process: a killed
process holds no lock. Within a process a mutex excludes threads, and prevents a fork inside the locked section:
otherwise a forked process would inherit the locked descriptor.
Test: tests/datasets/derived/cache/test_sample_store.py::test_a_killed_process_leaves_no_lock_behind
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
import sys
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

from feedline.errors import BadOption, SourceError
from feedline.system.failures import words
from feedline.system.handle import Handle
from feedline.system.process import leave_out_of_dumps

if sys.platform != "win32":
    import fcntl

NUMBER = struct.Struct("<Q")

_one_thread = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_one_thread.acquire, after_in_parent=_one_thread.release, after_in_child=_one_thread.release
    )


class SharedBytes(ABC):
    """Bytes at offsets, shared by processes."""

    _own: Handle[int]
    """A descriptor that this process has opened for itself."""

    @property
    @abstractmethod
    def end(self) -> int:
        """Number of bytes."""

    @abstractmethod
    def read(self, offset: int, size: int) -> bytearray:
        """Return a copy of these bytes; fewer if the end comes first."""

    @abstractmethod
    def write(self, offset: int, data: bytes) -> None:
        """Write bytes. Raises OSError: there is no room for them."""

    @abstractmethod
    def clear(self, start: int, end: int) -> None:
        """Set the bytes from `start` to `end` to zero. A file then ends at `end`."""

    def number(self, offset: int) -> int:
        """Return eight bytes as a number; 0 if the end comes first."""
        data = self.read(offset, NUMBER.size)
        return int(NUMBER.unpack(data)[0]) if len(data) == NUMBER.size else 0

    def close(self) -> None:
        """Close what this process has opened. The next use opens it again."""
        self._own.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude all other threads and processes that lock these bytes."""
        if sys.platform == "win32":
            raise BadOption("CachedDataset and precompute need POSIX file locks, which Windows lacks.")
        with _one_thread:
            fd = self._own.get()
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)


class SharedMemory(SharedBytes):
    """Memory that forked and spawned workers share; pages that were never written take no memory.

    If it is pickled while a worker process is being started, the worker gets the same memory. Pickled at any other
    time, it becomes new, empty memory: it has no name by which others could find it.
    """

    def __init__(self, size: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise BadOption("memory= needs Linux, whose anonymous files all workers can share. Use disk= here.")
        fd = os.memfd_create("feedline-cache", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            self._adopt(fd, size)
        except BaseException:
            os.close(fd)
            raise

    def _adopt(self, fd: int, size: int) -> None:
        try:
            mapping = mmap.mmap(fd, size)
            leave_out_of_dumps(mapping)
        except (OSError, OverflowError, ValueError) as exc:
            raise SourceError(
                f"A cache of {size} bytes cannot be mapped: {words(exc)}. A limit on virtual memory (`ulimit -v`) is "
                "the usual cause: raise it, or make memory= smaller."
            ) from exc
        self.view = memoryview(mapping)
        self._fd = fd
        weakref.finalize(self, os.close, fd)
        self._own = Handle(
            functools.partial(os.open, f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC), os.close, close_inherited=True
        )

    @property
    def end(self) -> int:
        return len(self.view)

    def read(self, offset: int, size: int) -> bytearray:
        return bytearray(self.view[offset : offset + size])

    def number(self, offset: int) -> int:
        return int(NUMBER.unpack_from(self.view, offset)[0])

    def write(self, offset: int, data: bytes) -> None:
        self.view[offset : offset + len(data)] = data

    def clear(self, start: int, end: int) -> None:
        zeros = bytes(1 << 16)
        for offset in range(start, end, len(zeros)):
            self.write(offset, zeros[: end - offset])

    def __reduce__(self) -> tuple[object, ...]:
        if context.get_spawning_popen() is None:
            return SharedMemory, (self.end,)
        return _adopted, (reduction.DupFd(self._fd), self.end)


# Any: what `reduction.DupFd` returns, which has no type.
def _adopted(fd: Any, size: int) -> SharedMemory:
    memory = SharedMemory.__new__(SharedMemory)
    memory._adopt(fd.detach(), size)
    return memory


class SharedFile(SharedBytes):
    """A file, opened by each process on use. It is read by calls, not mapped, so that truncation is detected."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path
        self._readonly = readonly
        mode = os.O_RDONLY if readonly else os.O_RDWR | os.O_CREAT
        self._own = Handle(functools.partial(_opened, str(path), mode), os.close, close_inherited=True)

    def __reduce__(self) -> tuple[object, ...]:
        return functools.partial(SharedFile, readonly=self._readonly), (self._path,)

    @property
    def end(self) -> int:
        return os.fstat(self._own.get()).st_size

    def read(self, offset: int, size: int) -> bytearray:
        size = max(0, min(size, self.end - offset))  # a damaged file may claim any size
        data = bytearray(size)
        view, done = memoryview(data), 0
        fd = self._own.get()
        while done < size:
            count = os.preadv(fd, [view[done:]], offset + done)
            if count == 0:
                break
            done += count
        view.release()
        del data[done:]
        return data

    def write(self, offset: int, data: bytes) -> None:
        fd = self._own.get()
        view = memoryview(data)
        while view:
            count = os.pwrite(fd, view, offset)
            offset, view = offset + count, view[count:]

    def clear(self, start: int, end: int) -> None:
        for size in (start, end):
            os.ftruncate(self._own.get(), size)

    def sync(self) -> None:
        """Flush all writes to disk."""
        os.fsync(self._own.get())


def _opened(path: str, mode: int) -> int:
    try:
        return os.open(path, mode | os.O_CLOEXEC, 0o666)
    except OSError as exc:
        raise SourceError(
            f"{path} cannot be opened: {exc.strerror}. If it was removed, create the dataset again."
        ) from exc


_ROWS, _COLUMNS = 4096, 8


class Counters:
    """Counts events of all processes, without a lock between them.

    Each process adds to its own row, chosen by its id; only the sum of the rows is meaningful. Two processes running at
    the same time whose ids differ by a multiple of 4096 share a row, and may lose a count.
    """

    def __init__(self, *names: str) -> None:
        self._columns = {name: number for number, name in enumerate(names)}
        self._memory = SharedMemory(_ROWS * _COLUMNS * NUMBER.size)
        self._numbers = self._memory.view.cast("Q")

    def __getstate__(self) -> tuple[dict[str, int], SharedMemory]:
        return self._columns, self._memory

    def __setstate__(self, state: tuple[dict[str, int], SharedMemory]) -> None:
        self._columns, self._memory = state
        self._numbers = self._memory.view.cast("Q")

    def add(self, name: str, count: int = 1) -> None:
        """Add to a counter."""
        place = os.getpid() % _ROWS * _COLUMNS + self._columns[name]
        with _one_thread:  # threads of a process share its row
            self._numbers[place] += count

    def totals(self) -> dict[str, int]:
        """Return the sums over all processes that ever counted."""
        return {name: sum(self._numbers[column::_COLUMNS]) for name, column in self._columns.items()}
