"""The memory of a batch on its way to the training process: a named segment of shared memory, or bytes in the message.

    worker makes the segment --answer--> training process maps it and removes the name --next task--> worker lets go

A segment has a name only until it is mapped. Both sides know the name, so the training process can remove it even if
the worker died in between. If the training process itself is killed in that moment, multiprocessing's resource tracker
removes the name. Windows has no names to remove: a segment lives while a process has it open, so the worker keeps it
open until the next task shows that it has arrived.

Neither side sees what the other writes into a batch later: on Linux the training process maps it copy-on-write, and a
worker that still refers to it gets a copy (`part_with`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import weakref
from multiprocessing.shared_memory import SharedMemory

import numpy as np

from feedline.errors import TooManyOpenFiles
from feedline.memory.codec import Bytes, Codec, SlotFull, SlotWriter
from feedline.memory.sparse import make_private, map_private
from feedline.types import Task
from feedline.workers.processes.messages import Kind, Message
from feedline.workers.processes.worker import BatchMemory

_WORTH_A_SEGMENT = 64 << 10
"""Smaller batches go through the pipe: a segment costs a dozen system calls. A guess."""

_FIRST_BYTES = 1 << 20

_MOST_SEGMENTS = 32
"""Segments that an engine keeps mapped. Each has two descriptors, and macOS allows 256; batches beyond are copied."""

IN_SEGMENT = 2
"""Mark of an answer whose batch is in a segment."""


class Outbox(BatchMemory):
    """The worker's side: memory to make a batch in, and the segment that is in transit.

    A batch as large as the previous ones is made in its segment. Any other is made in scratch memory, which grows until
    the batch fits, and is then copied.

    Args:
        prefix: first part of the names of segments; the number of the task follows.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._expected_bytes = 0
        self._scratch_bytes = _FIRST_BYTES
        self._scratch: bytearray | None = None
        self._segment: _Segment | None = None
        self._sent: _Segment | None = None

    def writer(self, task: Task) -> SlotWriter:
        self._sent = None
        if self._expected_bytes >= _WORTH_A_SEGMENT:
            with contextlib.suppress(OSError):  # no shared memory, or none left: the pipe carries any amount
                self._segment = _make_segment(f"{self._prefix}{task.id}", self._expected_bytes)
                return SlotWriter(self._segment.array(), shared=True)
        return self._scratch_writer()

    def _scratch_writer(self) -> SlotWriter:
        if self._scratch is None:
            self._scratch = bytearray(self._scratch_bytes)
        return SlotWriter(np.frombuffer(self._scratch, np.uint8))

    def part_with(self, task: Task, address: int, used: int, answer: Message) -> None:
        self._scratch = None
        if self._sent is None or self._sent.address != address:
            return  # it was made in scratch memory, or in a segment that was not sent
        if os.name == "posix":
            make_private(address, used)
        else:  # send a copy of it
            answer.body, answer.mark = answer.body + self._sent.array()[:used].tobytes(), 0

    def answer(self, codec: Codec, batch: object, writer: SlotWriter, task: Task) -> Message:
        while True:
            try:
                header = codec.encode(batch, writer)
                break
            except SlotFull:
                self.discard()
                self._scratch, self._scratch_bytes = None, 2 * writer.view.nbytes
                writer = self._scratch_writer()
        return self._post(header, writer, task)

    def _post(self, header: bytes, writer: SlotWriter, task: Task) -> Message:
        used = writer.used
        self._expected_bytes = max(used, self._expected_bytes * 7 // 8)
        if used >= _WORTH_A_SEGMENT:
            with contextlib.suppress(OSError):
                if self._segment is None:
                    self._segment = _make_segment(f"{self._prefix}{task.id}", used)
                    self._segment.array()[:used] = writer.view[:used]
                    self._scratch = None
                self._sent, self._segment = self._segment, None
                return Message(Kind.DONE, task.id, header, used, mark=IN_SEGMENT)
        body = header + writer.view[:used].tobytes()
        self.discard()
        return Message(Kind.DONE, task.id, body, used)

    def discard(self) -> None:
        if self._segment is not None:
            self._segment.memory.unlink()
            self._segment = None


class _Segment:
    """Shared memory as NumPy takes it: arrays over it keep it alive, and it is unmapped after the last of them.

    An array made from `SharedMemory.buf` would not work: `SharedMemory` closes itself when it is dropped, which fails
    while there are views of its buffer.
    """

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        assert memory.buf is not None  # until it is closed
        address: int = np.frombuffer(memory.buf, np.uint8, 1).__array_interface__["data"][0]
        self.address = address
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
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, size)
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
    """The training process's side: maps the segments that workers send."""

    def __init__(self) -> None:
        self._mapped: weakref.WeakSet[_Segment] = weakref.WeakSet()

    def open(self, name: str, size: int) -> Bytes:
        """Return the bytes of a batch; the array owns them, and no name remains."""
        segment = _open_segment(name)
        if len(self._mapped) < _MOST_SEGMENTS:
            if sys.platform == "linux":  # macOS refuses
                fd: int = segment.memory._fd  # type: ignore[attr-defined]  # not in the stubs
                map_private(segment.address, segment.memory.size, fd, 0)
            self._mapped.add(segment)
            return segment.array()
        return segment.array()[:size].copy()


def remove_segment(name: str) -> None:
    """Remove a segment that a dead worker may have left."""
    # An empty one cannot be opened (ValueError), nor can any without a descriptor: the resource tracker removes those.
    with contextlib.suppress(FileNotFoundError, ValueError, TooManyOpenFiles):
        _open_segment(name)  # removes the name; the memory is freed when the segment is dropped
