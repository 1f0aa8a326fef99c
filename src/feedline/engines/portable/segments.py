"""The memory of a batch on its way to the training process: a named segment of shared memory, or bytes in the pipe.

    worker makes the segment --answer--> training process maps it and removes the name --next request--> worker lets go

A segment has a name only between its making and its mapping, and the name was chosen by the training process, which
removes it also when the worker died in between. If the training process itself is killed in that moment,
multiprocessing's resource tracker removes the name. Windows has no names to remove: a segment lives while somebody has
it open, which is why the worker holds on to it until the next request tells that it has arrived.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import weakref
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from feedline.errors import TooManyOpenFiles
from feedline.transport.arena import Bytes
from feedline.transport.codec import SlotWriter

_WORTH_A_SEGMENT = 64 << 10
"""Less than this goes through the pipe: a segment costs a dozen system calls. A guess, not measured elsewhere."""

_FIRST_BYTES = 1 << 20

_MOST_SEGMENTS = 32
"""Segments an engine keeps mapped. Each has two descriptors, and macOS grants 256; batches beyond are copied."""

not_while_forking = threading.Lock()
"""Held while a thread does what a fork must not cut in half.

Opening a segment takes a lock of multiprocessing's resource tracker. A process forked by another thread in that moment
would have the lock, taken for good, and could make no segment itself.
Test: tests/engines/portable/test_segments.py::test_no_fork_while_a_segment_is_being_opened
"""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=not_while_forking.acquire,
        after_in_parent=not_while_forking.release,
        after_in_child=not_while_forking.release,
    )


@dataclass(slots=True)
class Freight:
    """The bytes of a batch: in a segment, or themselves."""

    size: int
    segment: str = ""
    data: bytearray | None = None


class Outbox:
    """The worker's side: memory to make batches in, warm from the ones before, and the segment that is on its way."""

    def __init__(self) -> None:
        self._memory = bytearray(_FIRST_BYTES)
        self._lease: weakref.ref[Bytes] | None = None
        self._sent: SharedMemory | None = None

    def writer(self) -> SlotWriter:
        """Return an empty writer. What was posted before has arrived."""
        if self._sent is not None:
            self._sent.close()
            self._sent = None
        if self._lease is not None and self._lease() is not None:  # a collate function keeps the batch it made last
            self._memory = bytearray(len(self._memory))
        return self._lend()

    def larger_writer(self) -> SlotWriter:
        """Return an empty writer with twice the room; what lies in the one before stays valid."""
        self._memory = bytearray(2 * len(self._memory))
        return self._lend()

    def _lend(self) -> SlotWriter:
        view: Bytes = np.frombuffer(self._memory, np.uint8)
        self._lease = weakref.ref(view)  # every array in the memory keeps it alive
        return SlotWriter(view, view.__array_interface__["data"][0])

    def post(self, writer: SlotWriter, name: str) -> Freight:
        """Get what was written ready to leave, if possible in a segment of that name."""
        written = writer.view[: writer.used]
        if written.nbytes >= _WORTH_A_SEGMENT:
            with contextlib.suppress(OSError):  # no shared memory, or none left: the pipe carries any amount
                self._sent = _make_segment(name, written.nbytes)
                _bytes_of(self._sent, written.nbytes)[:] = written
                return Freight(written.nbytes, segment=name)
        return Freight(written.nbytes, data=bytearray(written))


def _make_segment(name: str, size: int) -> SharedMemory:
    segment = SharedMemory(name, create=True, size=size)
    path = f"/dev/shm/{name}"
    if hasattr(os, "posix_fallocate") and os.path.exists(path):
        # Linux lets a file in /dev/shm be larger than what is left there, and kills whoever touches what is missing.
        try:
            fd = os.open(path, os.O_RDWR)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
        except OSError:
            segment.close()
            segment.unlink()
            raise
    return segment


class Inbox:
    """The training process's side: maps what workers have sent. Used by several threads."""

    def __init__(self) -> None:
        self._mapped: weakref.WeakSet[_Mapping] = weakref.WeakSet()

    def open(self, freight: Freight) -> Bytes:
        """Return the bytes of a batch; the array owns them, and nothing with a name is left."""
        if freight.data is not None:
            return np.frombuffer(freight.data, np.uint8) if freight.size else np.empty(0, np.uint8)
        with not_while_forking:
            segment = _open_segment(freight.segment)
            if len(self._mapped) < _MOST_SEGMENTS:
                mapping = _Mapping(segment, freight.size)
                self._mapped.add(mapping)
                return np.asarray(mapping)
        copy = _bytes_of(segment, freight.size).copy()
        segment.close()
        return copy


def _open_segment(name: str) -> SharedMemory:
    """Open a segment and remove its name."""
    try:
        segment = SharedMemory(name)
    except OSError as exc:
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            raise TooManyOpenFiles("taking over a batch from a worker") from exc
        raise
    segment.unlink()
    return segment


def _bytes_of(segment: SharedMemory, size: int) -> Bytes:
    assert segment.buf is not None  # until it is closed
    return np.frombuffer(segment.buf, np.uint8, size)


def remove_segment(name: str) -> None:
    """Remove what a worker that died may have left."""
    # An empty one cannot be opened (ValueError), nor any without a descriptor: the resource tracker will.
    with not_while_forking, contextlib.suppress(FileNotFoundError, ValueError, TooManyOpenFiles):
        _open_segment(name).close()


class _Mapping:
    """A segment as NumPy takes it: arrays over it keep it alive, and it is unmapped after the last of them.

    An array made from the segment's buffer would not do: `SharedMemory` closes itself when it is dropped, and cannot
    while there are views of its buffer.
    """

    def __init__(self, segment: SharedMemory, size: int) -> None:
        self._segment = segment
        address = _bytes_of(segment, size).__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": (size,), "typestr": "|u1", "data": (address, False)}
