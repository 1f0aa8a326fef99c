"""Grounds: what a vault lies in. Shared memory without a name, or a file.

A ground is read and written at offsets by several processes and threads at the same time. Nothing here orders these
accesses: what is read may be half written, and whoever reads it has a checksum to tell. Only `locked` excludes others.

The lock is `flock` on a descriptor that each process has opened for itself, so that it goes with the process: one that
is killed holds nothing back. Within a process a mutex excludes threads, and keeps a fork out of the locked section:
otherwise a forked process would inherit the locked descriptor.
Test: tests/datasets/cache/test_ground.py::test_a_killed_process_leaves_no_lock_behind
"""

from __future__ import annotations

import functools
import mmap
import os
import struct
import sys
import threading
import weakref
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any

from feedline.datasets.handle import Handle
from feedline.errors import BadOption, SourceError
from feedline.failures import words
from feedline.system.process import leave_out_of_dumps

if sys.platform != "win32":
    import fcntl

NUMBER = struct.Struct("<Q")

_one_thread = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_one_thread.acquire, after_in_parent=_one_thread.release, after_in_child=_one_thread.release
    )


class Ground:
    """Bytes at offsets, which processes share."""

    _own: Handle[int]
    """A descriptor that this process has opened for itself."""

    @abstractmethod
    def read(self, offset: int, size: int) -> bytearray:
        """Return a copy of these bytes; fewer, if the ground ends before."""

    def number(self, offset: int) -> int:
        """Return eight bytes as a number; 0 if the ground ends before."""
        data = self.read(offset, NUMBER.size)
        return int(NUMBER.unpack(data)[0]) if len(data) == NUMBER.size else 0

    @property
    @abstractmethod
    def end(self) -> int:
        """Where the ground ends, in bytes."""

    @abstractmethod
    def write(self, offset: int, data: bytes) -> None:
        """Write bytes. OSError if there is no room for them."""

    @property
    @abstractmethod
    def openings(self) -> int:
        """How often this object has opened what it lies in, opened now: another number, and it may be another file."""

    @abstractmethod
    def sync(self) -> None:
        """Have the disk hold what was written, if it is a disk."""

    def close(self) -> None:
        """Close what this process has opened. It is opened again when it is used."""
        self._own.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude all other threads and processes that want to be alone on this ground."""
        if sys.platform == "win32":
            raise BadOption("CachedDataset and precompute need the file locks of POSIX systems, which Windows lacks.")
        with _one_thread:
            fd = self._own.get()
            fcntl.flock(fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(fd, fcntl.LOCK_UN)


class MemoryGround(Ground):
    """A piece of memory that forked and started workers share; pages that nobody wrote to do not exist.

    Sent to a worker process while that is started, it arrives as the same memory. Pickled otherwise, it arrives as a
    new and empty one: there is no name by which others could find it.

    Args:
        size: how many bytes.
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
            self.map = mmap.mmap(fd, size)
            leave_out_of_dumps(self.map)
        except (OSError, OverflowError, ValueError) as exc:
            raise SourceError(
                f"A cache of {size} bytes cannot be mapped: {words(exc)}. A limit on virtual memory (`ulimit -v`) is "
                "the usual cause; give memory= less."
            ) from exc
        self.size = size
        self._view = memoryview(self.map)
        self._fd = fd
        weakref.finalize(self, os.close, fd)
        self._own = Handle(
            functools.partial(os.open, f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC), os.close, close_inherited=True
        )
        weakref.finalize(self, self._own.close)

    @property
    def end(self) -> int:
        return self.size

    def read(self, offset: int, size: int) -> bytearray:
        return bytearray(self._view[offset : offset + size])

    def number(self, offset: int) -> int:
        return int(NUMBER.unpack_from(self._view, offset)[0])

    def view(self, offset: int, size: int) -> memoryview:
        """Return the bytes themselves, read-only; they keep the memory alive."""
        return self._view[offset : offset + size].toreadonly()

    def write(self, offset: int, data: bytes) -> None:
        self._view[offset : offset + len(data)] = data

    @property
    def openings(self) -> int:
        return 1  # memory has no name behind which something else could be put

    def sync(self) -> None:
        pass  # there is no disk

    # Any: what pickle takes.
    def __reduce__(self) -> Any:
        if context.get_spawning_popen() is None:
            return MemoryGround, (self.size,)
        return _adopted, (reduction.DupFd(self._fd), self.size)


def _adopted(fd: Any, size: int) -> MemoryGround:
    ground = MemoryGround.__new__(MemoryGround)
    ground._adopt(fd.detach(), size)
    return ground


class FileGround(Ground):
    """A file, opened in each process when it is used. It is read by calls, not mapped: what is cut off is noticed.

    Args:
        path: of the file, which exists.
        readonly: True if it is never written to.
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path
        self._readonly = readonly
        self._openings = [0]
        mode = os.O_RDONLY if readonly else os.O_RDWR
        self._own = Handle(functools.partial(_opened, str(path), mode, self._openings), os.close, close_inherited=True)
        weakref.finalize(self, self._own.close)

    # Any: what pickle takes.
    def __reduce__(self) -> Any:
        return functools.partial(FileGround, readonly=self._readonly), (self._path,)

    @property
    def end(self) -> int:
        return os.fstat(self._own.get()).st_size

    def read(self, offset: int, size: int) -> bytearray:
        size = max(0, min(size, self.end - offset))  # a damaged file may say any size
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

    @property
    def openings(self) -> int:
        self._own.get()
        return self._openings[0]

    def sync(self) -> None:
        os.fsync(self._own.get())


def _opened(path: str, mode: int, openings: list[int]) -> int:
    openings[0] += 1
    try:
        return os.open(path, mode | os.O_CLOEXEC)
    except OSError as exc:
        raise SourceError(
            f"{path} cannot be opened: {exc.strerror}. If it was removed, begin with a new dataset object."
        ) from exc


__all__ = ["FileGround", "Ground", "MemoryGround"]
