"""Worker processes that use only the parts of Python's multiprocessing that every system has (macOS, Windows).

A worker has one task at a time: it gets the next one when the training process has its answer. So tasks that wait can
always be taken back, and the training process never waits for a pipe that is full. Large batches travel in segments of
shared memory.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import pickle
import secrets
import socket
from ctypes import c_int
from multiprocessing import reduction, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.memory.codec import Reader, segment_reader
from feedline.workers import session
from feedline.workers.heap import Heap
from feedline.workers.portable.segments import IN_SEGMENT, Inbox, Outbox, remove_segment
from feedline.workers.processes.channel import Channel, Transport
from feedline.workers.processes.messages import ANSWERS, Message, packed, unpacked
from feedline.workers.processes.worker import Link

_IDLE_S = 0.2
"""Idle time after which a worker checks for free memory to return; see `Heap`."""

_SHORT = 4 << 10
"""The longest task that is sent while its worker is starting: every system holds it in the pipe."""


class PipeChannel(Channel):
    """A worker at the other end of a pipe."""

    near: Connection
    far: Connection

    def __init__(self, number: int, generation: int, context: Any, inbox: Inbox, prefix: str) -> None:
        self.near, self.far = context.Pipe()
        self._inbox = inbox
        self.prefix = prefix
        self._current: int | None = None
        """The task that the worker has."""
        super().__init__(number, generation)

    def flush(self) -> None:
        if self._current is not None or not self.unsent or self.dead:
            return
        if self.is_ready or len(self.unsent[0].body) <= _SHORT:
            message = self.unsent.popleft()
            self._current = message.task_id
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is noticed elsewhere
                self.near.send_bytes(packed(message))

    def receive(self, *, block: bool = False) -> Message | None:
        try:
            if self.near.poll():
                message = unpacked(self.near.recv_bytes())
                if message.kind in ANSWERS:
                    self._current = None
                return message
        except (EOFError, OSError):
            return None
        raise BlockingIOError

    def take_back(self) -> int | None:
        if self._current is not None and self.dead and not self.is_ready:  # the worker never looked at it
            taken, self._current = self._current, None
            return taken
        return self.unsent.popleft().task_id if self.unsent else None

    def reader(self, message: Message) -> Reader | None:
        if message.mark != IN_SEGMENT:
            return None
        return segment_reader(self._inbox.open(f"{self.prefix}{message.task_id}", message.used))

    def hang_up(self) -> None:
        # Closing alone is not noticed inside the user's code. On Windows, the end of a worker runs none of its code.
        if os.name == "posix" and not self.near.closed:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.near.fileno())) as sock:
                sock.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        if self._current is not None:
            remove_segment(f"{self.prefix}{self._current}")


class PipeTransport(Transport):
    """Workers that send each batch in memory of its own.

    Args:
        context: a multiprocessing context.
    """

    def __init__(self, context: BaseContext) -> None:
        super().__init__(context)
        self._inbox = Inbox()
        self._prefix = f"feedline_{secrets.token_hex(4)}_"  # macOS allows names of 30 characters

    def open(self, spec: WorkerSpec) -> None:
        if os.name == "posix":
            resource_tracker.ensure_running()  # one for all: a worker's own would remove segments when it ends

    def connect(self, number: int, generation: int = 0) -> PipeChannel:
        return PipeChannel(number, generation, self.context, self._inbox, self._prefix)

    def link(self, channel: Channel) -> PipeLink:
        assert isinstance(channel, PipeChannel)
        return PipeLink(channel.number, channel.far, channel.generation, channel.prefix)

    def packed(self, spec: WorkerSpec) -> SentSpec:
        return SentSpec(spec)

    def launch(self, channel: Channel, spec: WorkerSpec, limits: list[c_int]) -> BaseProcess:
        try:
            return super().launch(channel, spec, limits)
        finally:
            channel.far.close()  # otherwise a message to a worker that has ended could wait in the pipe forever


class PipeLink(Link):
    """The worker's end of the pipe.

    The pipe closes with the training process, provided that no other process has a copy of that process's end. A forked
    worker closes the copies it inherits; a process that the program itself forks, and that outlives it, keeps them.
    """

    def __init__(self, number: int, pipe: Connection, generation: int, prefix: str) -> None:
        self.number = number
        self.generation = generation
        self.memory = Outbox(prefix)
        self._pipe = pipe

    def next_message(self, heap: Heap) -> Message | None:
        for waits in itertools.count(1):
            if os.name != "posix" or self._pipe.poll(_IDLE_S):  # no heap to look after on Windows
                break
            heap.rested(waits)
        try:
            return unpacked(self._pipe.recv_bytes())
        except (EOFError, OSError):
            return None

    def has_closed(self) -> bool:
        return self._pipe.poll()  # while a task is done, only the end of the pipe can be read from it

    def tell(self, message: Message) -> None:
        try:
            self._pipe.send_bytes(packed(message))
        except OSError as exc:
            raise BrokenPipeError from exc


class SentSpec:
    """A worker specification that is pickled for one worker, with the session's definitions.

    It is unpickled by `open`, so that an exception of the user's code can be reported.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec

    def __reduce__(self) -> tuple[object, ...]:
        file = io.BytesIO()
        pickler: Any = reduction.ForkingPickler(file, 5)
        with session.by_value() as reduce:
            if reduce is not None:
                pickler.reducer_override = reduce
            pickler.dump(self._spec)
        return _Received, (file.getvalue(),)


class _Received:
    def __init__(self, data: bytes) -> None:
        self._data = data

    def open(self, worker: int) -> WorkerSpec:
        spec: WorkerSpec = pickle.loads(self._data)
        return spec
