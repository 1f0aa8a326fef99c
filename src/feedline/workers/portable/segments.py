"""The memory of a batch on its way to the training process: a named segment of shared memory, or bytes in the pipe.

    worker makes the segment --answer--> training process maps it and removes the name --next request--> worker lets go

A segment has a name only until it is mapped. The training process chooses the name, and removes it even if the worker
died in between. If the training process itself is killed in that moment, multiprocessing's resource tracker removes the
name. Windows has no names to remove: a segment lives while a process has it open, so the worker keeps it open until the
next request shows that it has arrived.
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
from feedline.memory.codec import SlotWriter
from feedline.memory.reading import Bytes

_WORTH_A_SEGMENT = 64 << 10
"""Smaller batches go through the pipe: a segment costs a dozen system calls. A guess."""

_FIRST_BYTES = 1 << 20

_MOST_SEGMENTS = 32
"""Segments that an engine keeps mapped. Each has two descriptors, and macOS allows 256; batches beyond are copied."""

not_while_forking = threading.Lock()
"""Held while a thread does something that a fork must not interrupt.

Opening a segment takes a lock of multiprocessing's resource tracker. A process that another thread forks at that moment
would inherit the lock in its locked state, and could never make a segment itself.
Test: tests/workers/portable/test_segments.py::test_no_fork_while_a_segment_is_being_opened
"""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=not_while_forking.acquire,
        after_in_parent=not_while_forking.release,
        after_in_child=not_while_forking.release,
    )


@dataclass(slots=True)
class BatchBytes:
    """The bytes of a batch: in a segment, or inline."""

    size: int
    segment: str = ""
    data: bytearray | None = None


class Outbox:
    """The worker's side: memory to make a batch in, and the segment that is in transit.

    A batch as large as the previous ones is made in its segment. Any other is made in scratch memory, which grows until
    the batch fits, and is then copied.
    """

    def __init__(self) -> None:
        self._expected_bytes = 0
        self._scratch: bytearray | None = None
        self._lease: weakref.ref[Bytes] | None = None
        self._segment: _Segment | None = None
        self._sent: _Segment | None = None

    def open(self, name: str) -> SlotWriter:
        """Return an empty writer for the next batch, and release the previous segment, which has arrived."""
        self._sent = None
        if self._expected_bytes >= _WORTH_A_SEGMENT:
            with contextlib.suppress(OSError):  # no shared memory, or none left: the pipe carries any amount
                self._segment = _make_segment(name, self._expected_bytes)
                return _writer_over(self._segment.array())
        if self._scratch is None or (self._lease is not None and self._lease() is not None):
            # A collate function may keep arrays that it made there.
            self._scratch = bytearray(_FIRST_BYTES if self._scratch is None else len(self._scratch))
        return self._lend_scratch()

    def open_larger(self, writer: SlotWriter) -> SlotWriter:
        """Return an empty writer of twice the size; the contents of the previous one stay valid."""
        self.discard()
        self._scratch = bytearray(2 * writer.view.nbytes)
        return self._lend_scratch()

    def _lend_scratch(self) -> SlotWriter:
        assert self._scratch is not None
        view: Bytes = np.frombuffer(self._scratch, np.uint8)
        self._lease = weakref.ref(view)  # every array in the memory keeps it alive
        return _writer_over(view)

    def post(self, writer: SlotWriter, name: str) -> BatchBytes:
        """Prepare the written bytes for sending; many bytes go into a segment with that name."""
        used = writer.used
        self._expected_bytes = max(used, self._expected_bytes * 7 // 8)
        if used >= _WORTH_A_SEGMENT:
            with contextlib.suppress(OSError):
                if self._segment is None:
                    self._segment = _make_segment(name, used)
                    self._segment.array()[:used] = writer.view[:used]
                    self._scratch = None
                self._sent, self._segment = self._segment, None
                return BatchBytes(used, segment=name)
        data = bytearray(writer.view[:used])
        self.discard()
        return BatchBytes(used, data=data)

    def discard(self) -> None:
        """Remove a segment that was opened and not posted."""
        if self._segment is not None:
            self._segment.memory.unlink()
            self._segment = None


def _writer_over(view: Bytes) -> SlotWriter:
    return SlotWriter(view, view.__array_interface__["data"][0])


class _Segment:
    """Shared memory as NumPy takes it: arrays over it keep it alive, and it is unmapped after the last of them.

    An array made from `SharedMemory.buf` would not work: `SharedMemory` closes itself when it is dropped, which fails
    while there are views of its buffer.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        assert memory.buf is not None  # until it is closed
        address = np.frombuffer(memory.buf, np.uint8, 1).__array_interface__["data"][0]
        self.__array_interface__ = {"version": 3, "shape": (memory.size,), "typestr": "|u1", "data": (address, False)}

    def array(self) -> Bytes:
        """Return all of it, which may be more than was requested: systems round up."""
        return np.asarray(self)


def _make_segment(name: str, size: int) -> _Segment:
    memory = SharedMemory(name, create=True, size=size)
    path = f"/dev/shm/{name}"
    if hasattr(os, "posix_fallocate") and os.path.exists(path):
        # Linux allows a file in /dev/shm to exceed the free space there, and kills a process that touches the excess.
        try:
            fd = os.open(path, os.O_RDWR)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
        except OSError:
            memory.unlink()
            raise
    return _Segment(memory)


def _open_segment(name: str) -> _Segment:
    """Open a segment and remove its name."""
    try:
        memory = SharedMemory(name)
    except OSError as exc:
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            raise TooManyOpenFiles("taking over a batch from a worker") from exc
        raise
    memory.unlink()
    return _Segment(memory)


class Inbox:
    """The training process's side: maps the segments that workers send. Used by several threads."""

    def __init__(self) -> None:
        self._mapped: weakref.WeakSet[_Segment] = weakref.WeakSet()

    def open(self, batch_bytes: BatchBytes) -> Bytes:
        """Return the bytes of a batch; the array owns them, and no name remains."""
        if batch_bytes.data is not None:
            return np.frombuffer(batch_bytes.data, np.uint8) if batch_bytes.size else np.empty(0, np.uint8)
        with not_while_forking:
            segment = _open_segment(batch_bytes.segment)
            if len(self._mapped) < _MOST_SEGMENTS:
                self._mapped.add(segment)
                return segment.array()
        return segment.array()[: batch_bytes.size].copy()


def remove_segment(name: str) -> None:
    """Remove a segment that a dead worker may have left."""
    # An empty one cannot be opened (ValueError), nor can any without a descriptor: the resource tracker removes those.
    with not_while_forking, contextlib.suppress(FileNotFoundError, ValueError, TooManyOpenFiles):
        _open_segment(name)  # removes the name; the memory is freed when the segment is dropped
