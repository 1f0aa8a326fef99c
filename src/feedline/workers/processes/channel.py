"""One worker process, as seen from the training process, however the two are connected; and how it is started.

fork: the child inherits the specification and the mapping of the arena; nothing is serialised. The fork happens while
no other thread holds a lock, and the child first cleans up what it inherited: locks, threads of libraries, connections
of other workers.

forkserver and spawn: the child is a fork of a bare server, or a new interpreter, and reads a serialised specification.
Workers start in parallel.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import socket
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from ctypes import c_int
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import WorkerDied
from feedline.memory.codec import Reader
from feedline.system.references import References
from feedline.workers import lifetime, session
from feedline.workers.fork_safety import quiesce_threads, reset_in_child
from feedline.workers.processes import worker
from feedline.workers.processes.messages import Message

End = socket.socket | Connection
"""One end of a connection."""


class Channel(ABC):
    """One worker: its connection, its process, its end. Only the consumer's thread uses it."""

    near: End
    far: End
    """The worker's end."""
    ended = -1
    """Becomes readable when the worker has ended: a descriptor; on Windows a handle."""

    def __init__(self, number: int, generation: int = 0) -> None:
        self.number = number
        self.generation = generation
        """How many workers had this number before."""
        self.process: BaseProcess | None = None
        self.unsent: deque[Message] = deque()
        """Tasks that the connection has not accepted."""
        self.dead = False
        self.deadline_s = math.inf
        """The time by which the worker must report that it is alive."""
        self.alive_s = 0.0
        """When it last did."""
        self.is_ready = False
        """True once the worker has reported it."""
        self.hang_error: WorkerDied | None = None
        """The error for a worker that has hung since it was forked."""
        self.unready: BaseException | None = None
        """Why the worker could not get ready, if it reported that."""
        _channels.add(self)

    @abstractmethod
    def flush(self) -> None:
        """Send as much as the connection accepts; the rest waits for the next call, so the training loop never blocks.

        Raises:
            OSError: no descriptor is left for a long message.
        """

    @abstractmethod
    def receive(self, *, block: bool = False) -> Message | None:
        """Take the next message; None when the worker is gone.

        Raises:
            BlockingIOError: nothing is waiting; with `block`, nothing came for a moment.
        """

    @abstractmethod
    def take_back(self) -> int | None:
        """Take back the oldest task that the worker has not begun; return its number, None if there is none."""

    @abstractmethod
    def reader(self, message: Message) -> Reader | None:
        """Return the reader of a batch that came in memory of its own; None if it is in a slot or in the message."""

    def is_gone(self) -> bool:
        """True if the worker has ended."""
        return self.ended >= 0 and bool(wait([self.ended], 0))

    def forget(self) -> None:  # noqa: B027
        """Release the memory of an answer that will not be read: the worker has ended."""

    @abstractmethod
    def hang_up(self) -> None:
        """Let the worker end as soon as it notices. May be called twice."""

    def close(self) -> None:
        """Release everything. The process is not ended here."""
        self.near.close()
        self.far.close()
        self.forget()
        if self.ended >= 0 and os.name == "posix":
            os.close(self.ended)
        self.ended = -1


class Transport(ABC):
    """How an engine's workers are started and connected.

    Args:
        context: a multiprocessing context.
    """

    waits_for_one = False
    """True if a channel can be waited for alone, without keeping the other workers from their tasks."""

    # Any: the base class of contexts does not declare `Process`.
    def __init__(self, context: Any) -> None:
        self.context = context
        self.forks = lifetime.start_method(context) == "fork"

    @abstractmethod
    def open(self, spec: WorkerSpec) -> None:
        """Prepare to connect workers."""

    @abstractmethod
    def connect(self, number: int, generation: int = 0) -> Channel:
        """Return a channel for a worker that has not been started. It takes tasks already."""

    @abstractmethod
    def link(self, channel: Channel) -> worker.Link:
        """Return the worker's end of a channel."""

    @abstractmethod
    def packed(self, spec: WorkerSpec) -> object:
        """Return what arrives at a worker that inherits nothing as its `PackedSpec`."""

    def launch(self, channel: Channel, spec: WorkerSpec, limits: list[c_int]) -> BaseProcess:
        """Start the worker of a channel. A forked one sets each of `limits` to 1."""
        link = self.link(channel)
        process: BaseProcess
        if self.forks:
            process = self.context.Process(target=_forked, args=(link, spec, limits), daemon=True)
            _check_descriptors()
            with quiesce_threads(), passed_on(channel.far):
                process.start()
            return process
        name, arguments = lifetime.process_name(channel.number), (link, self.packed(spec))
        process = self.context.Process(target=worker.serve_fresh, args=arguments, name=name, daemon=True)
        with session.without_file():
            process.start()
        return process

    def called(self) -> None:  # noqa: B027
        """Note that a method of the dataset is called in all workers, and in this process."""

    def stack(self, pid: int) -> str | None:
        """Return the Python stacks of a worker; None if it does not answer."""
        return None

    def close(self) -> None:  # noqa: B027
        """Release everything. May be called twice, and without `open`."""


def _check_descriptors() -> None:
    """Raise OSError unless two pipes can be opened: Python's own start leaks the first if it gets no second one.

    Test: tests/workers/processes/test_engine.py::test_a_start_that_finds_too_few_descriptors_leaks_none
    """
    found: list[int] = []
    try:
        for _ in range(2):
            found += os.pipe()
    finally:
        for fd in found:
            os.close(fd)


def _forked(link: worker.Link, spec: WorkerSpec, blas_limits: list[c_int]) -> None:
    reset_in_child(spec.dataset)
    for limit in blas_limits:
        limit.value = 1
    gc.freeze()  # inherited objects are not garbage: each collection that visits them would copy their pages
    worker.serve(link, spec)


_channels: References[Channel] = References()
"""Every channel of this process."""

_passed: list[End] = []
"""The end of the worker that is being forked."""


@contextlib.contextmanager
def passed_on(own: End) -> Iterator[None]:
    """A context in which to fork a worker: it keeps its own end."""
    _passed.append(own)
    try:
        yield
    finally:
        _passed.remove(own)


def _close_in_child() -> None:
    # A copy would keep a worker from noticing that its connection was closed. And when a child of the user's drops an
    # iterator that it was forked with, Python would warn of each socket.
    # Test: tests/faults/test_forked.py::test_a_child_gets_no_warning_about_what_it_was_forked_with
    for channel in _channels:
        for end in (channel.near, channel.far):
            if not any(end is own for own in _passed):
                end.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
