"""The training process's side: starts workers, sends tasks, gathers answers, notices deaths.

Each worker has one socket pair. The training process keeps a copy of the worker's end, so that it can take back a task
the worker has not begun: the kernel gives each packet to exactly one reader, which makes the race between "begin" and
"take back" a fair one without any lock. A worker's death is seen through its `pidfd`, never through the socket.

What the worker said before it died is still in the socket and is read before the death is reported.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import multiprocessing
import os
import pickle
import select
import socket
import time
import weakref
from collections import deque
from collections.abc import Callable
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from feedline import openmp
from feedline.abc.engine import Engine
from feedline.engines import lifetime
from feedline.engines.failure import UNPICKLABLE, unpack_failure, unsendable
from feedline.engines.processes import start
from feedline.engines.processes.messages import Kind, Message, receive, send, set_receive_timeout, task_message
from feedline.engines.processes.payload import Payload
from feedline.engines.processes.worker import ArenaView, Link
from feedline.errors import TooManyOpenFiles, WorkerDied
from feedline.transport.arena import Arena, Bytes, leases
from feedline.types import Notes, Parcel, Result, ResultKind, Task, WorkerSpec

_LOOK_AROUND_S = 0.02
"""How often a wait for one worker is interrupted to see whether it lives, and how late it is."""


class _Channel:
    """One worker, seen from the training process."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process: BaseProcess | None = None
        self.pidfd = -1
        set_receive_timeout(self.near, _LOOK_AROUND_S)
        self.unsent: deque[Message] = deque()
        self.dead = False

    def is_gone(self) -> bool:
        """True if the worker has ended."""
        if self.pidfd < 0:
            return False
        poll = select.poll()  # select() knows no descriptors above 1023
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def close(self) -> None:
        self.near.close()
        self.far.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


_channels: weakref.WeakValueDictionary[int, _Channel] = weakref.WeakValueDictionary()
"""Every channel of this process: a forked worker closes those that are not its own."""


class ProcessEngine(Engine):
    """Runs tasks in worker processes that write their batches into an arena.

    Args:
        worker_count: how many.
        arena: shared memory for the batches.
        context: a multiprocessing context, None for the program's default start method.
    """

    def __init__(self, worker_count: int, arena: Arena, context: BaseContext | None = None) -> None:
        self.worker_count = worker_count
        self._arena = arena
        self._context = context
        self._channels: list[_Channel] = []
        self._epoll: Any = None
        self._by_fd: dict[int, _Channel] = {}
        self._slots: dict[int, int] = {}
        self._notes: dict[int, Notes] = {}
        self._launch: Callable[[Link], BaseProcess] | None = None
        self._payload: Payload | None = None
        self._seen_by_workers: list[Bytes] = []
        """Batches that forked workers can see, and that must stay what they are while the workers live."""
        self._owner_pid = os.getpid()
        self._closed = False

    def open(self, spec: WorkerSpec) -> None:
        context: Any = self._context or multiprocessing.get_context()
        method = lifetime.start_method(context)
        with lifetime.explained_start(self):
            self._epoll = select.epoll()
            for number in range(self.worker_count):
                channel = _Channel(number)
                self._channels.append(channel)
                _channels[id(channel)] = channel
                self._watch(channel, channel.near.fileno())
            if method == "fork":
                self._launch = lambda link: start.start_forked(context, link, spec, self._strangers(link))
                return
            if method == "forkserver":
                lifetime.preload_in_forkserver(spec, start.__name__)
            payload = self._payload = Payload(spec)
            self._launch = lambda link: start.start_fresh(context, link, payload)

    def start(self) -> None:
        if self._launch is None:
            return
        launch, self._launch = self._launch, None
        with lifetime.explained_start(self):
            openmp.dismiss_idle_threads()
            self._seen_by_workers = leases()
            for channel in self._channels:
                process = launch(Link(channel.number, channel.far, ArenaView(self._arena), os.getpid()))
                channel.process = process
                lifetime.remember(process)
                assert process.pid is not None
                channel.pidfd = os.pidfd_open(process.pid)
                self._watch(channel, channel.pidfd)
        if self._payload is not None:
            self._payload.close()

    def _watch(self, channel: _Channel, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._by_fd[fd] = channel

    def _strangers(self, link: Link) -> list[socket.socket]:
        channels = [reference() for reference in _channels.valuerefs()]  # a list: other threads may add to it
        sockets = [sock for channel in channels if channel is not None for sock in (channel.near, channel.far)]
        return [sock for sock in sockets if sock is not link.sock]

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [channel.process.pid or 0 for channel in self._channels if channel.process is not None]

    def submit(self, worker: int, task: Task) -> None:
        try:
            message = task_message(task)
        except UNPICKLABLE as exc:
            raise unsendable(task.indices, exc) from exc
        self._slots[task.id] = task.slot
        channel = self._channels[worker]
        channel.unsent.append(message)
        try:
            self._flush(channel)
        except OSError as exc:  # no descriptor for the memory that carries a long message
            channel.unsent.remove(message)
            if exc.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise TooManyOpenFiles("sending a task to a worker") from exc

    def _flush(self, channel: _Channel) -> None:
        """Send what the socket accepts; the rest waits for the next call, so the training loop never blocks here."""
        while channel.unsent and not channel.dead:
            try:
                send(channel.near, channel.unsent[0], block=False)
            except BlockingIOError:
                return
            except (BrokenPipeError, ConnectionResetError):
                return  # its pidfd tells the rest
            channel.unsent.popleft()

    def revoke(self, worker: int) -> int | None:
        channel = self._channels[worker]
        message: Message | None = None
        with contextlib.suppress(BlockingIOError):
            message = receive(channel.far, block=False)
        if message is None and channel.unsent:
            message = channel.unsent.popleft()
        if message is None:
            return None
        self._slots.pop(message.task_id, None)
        return message.task_id

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results: list[Result] = []
        if worker is not None and not self._channels[worker].dead:
            self._collect_from(self._channels[worker], timeout_s, results)
            return results
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not results:
            wait = -1 if deadline is None else max(0.0, deadline - time.monotonic())
            ready = self._epoll.poll(wait)
            dead: list[_Channel] = []
            for fd, _ in ready:
                channel = self._by_fd[fd]
                if fd == channel.pidfd:
                    dead.append(channel)
                else:
                    self._read(channel, results)
            for channel in dead:
                self._read(channel, results)
                results.append(self._bury(channel))
            if deadline is not None and time.monotonic() >= deadline:
                break
        return results

    def _collect_from(self, channel: _Channel, timeout_s: float | None, results: list[Result]) -> None:
        """Wait for one worker alone: a receive that blocks is one system call, where polling first would be two."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if channel.unsent:
                self._flush(channel)
            try:
                message = receive(channel.near, block=True)
            except BlockingIOError:  # nothing for _LOOK_AROUND_S
                if channel.is_gone():
                    self._read(channel, results)
                    results.append(self._bury(channel))
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    return
                continue
            if message is not None and message.kind is Kind.NOTES:
                self._keep_notes(message)
                continue
            if message is not None:
                results.append(self._result(channel.number, message))
            return

    def _read(self, channel: _Channel, results: list[Result]) -> None:
        while True:
            try:
                message = receive(channel.near, block=False)
            except (BlockingIOError, ConnectionResetError):
                break
            if message is None:
                break
            if message.kind is Kind.NOTES:
                self._keep_notes(message)
            else:
                results.append(self._result(channel.number, message))
        if channel.unsent:
            self._flush(channel)

    def _keep_notes(self, message: Message) -> None:
        """Keep what a worker says in addition until its batch arrives."""
        self._notes[message.task_id] = pickle.loads(message.body)

    def _result(self, worker: int, message: Message) -> Result:
        slot = self._slots.pop(message.task_id, -1)
        if message.kind is Kind.DONE:
            overflow = None
            if message.fd >= 0:
                try:
                    # Copied: a mapping holds a descriptor, and a program may keep thousands of batches.
                    with mmap.mmap(message.fd, max(message.used, 1), prot=mmap.PROT_READ) as mapping:
                        overflow = np.frombuffer(bytearray(mapping), np.uint8)
                except OSError as exc:
                    failure: Exception = exc
                    if exc.errno in (errno.EMFILE, errno.ENFILE):
                        failure = TooManyOpenFiles("taking over the memory of a batch")
                    return Result(ResultKind.FAILED, worker, message.task_id, failure)
                finally:
                    os.close(message.fd)
            parcel = Parcel(message.body, slot, message.used, overflow)
            notes = self._notes.pop(message.task_id, None) if self._notes else None
            return Result(ResultKind.DONE, worker, message.task_id, parcel, message.busy_ns, notes)
        if message.kind is Kind.MISFIT:
            return Result(ResultKind.MISFIT, worker, message.task_id)
        if message.kind is Kind.ENDED:
            notes = self._notes.pop(message.task_id, None)
            return Result(ResultKind.ENDED, worker, message.task_id, notes=notes)
        return Result(ResultKind.FAILED, worker, message.task_id, unpack_failure(message.body))

    def _bury(self, channel: _Channel) -> Result:
        """Report a worker's death, once."""
        assert channel.process is not None
        channel.dead = True
        self._epoll.unregister(channel.pidfd)
        self._epoll.unregister(channel.near.fileno())
        death = WorkerDied(lifetime.obituary(channel.process, channel.number))
        return Result(ResultKind.DIED, channel.number, -1, death)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._owner_pid:
            return  # a fork of the trainer: these are the parent's workers
        for channel in self._channels:
            while self.revoke(channel.number) is not None:
                continue
            with contextlib.suppress(OSError):  # not just closed: a fork of the trainer may have a copy of it
                channel.near.shutdown(socket.SHUT_RDWR)
            channel.near.close()
        lifetime.end(channel.process for channel in self._channels if channel.process is not None)
        for channel in self._channels:
            if channel.process is not None:
                with contextlib.suppress(ValueError):  # it would not even be killed
                    channel.process.close()
            channel.close()
        self._channels.clear()
        self._seen_by_workers.clear()
        if self._payload is not None:
            self._payload.close()
        if self._epoll is not None:
            self._epoll.close()
