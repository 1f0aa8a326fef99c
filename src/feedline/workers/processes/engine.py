"""The training process's side: starts workers, sends tasks, collects answers, detects deaths.

Each worker has one socket pair. The training process keeps a copy of the worker's end, so that it can take back a task
the worker has not begun: the kernel gives each packet to exactly one reader, which makes the race between "begin" and
"take back" a fair one without any lock. A worker's death is detected through its `pidfd`, never through the socket.

Messages that the worker sent before it died are still in the socket and are read before the death is reported.
"""

from __future__ import annotations

import contextlib
import errno
import math
import multiprocessing
import os
import select
import socket
import threading
import time
from ctypes import c_int
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import TooManyOpenFiles, WorkerDied
from feedline.memory.arena import Arena
from feedline.system import interrupts, openmp
from feedline.types import Call, Result, ResultKind, Task
from feedline.workers import handles, lifetime
from feedline.workers.base import WorkerEngine
from feedline.workers.failure import UNPICKLABLE, unpack_failure, unsendable
from feedline.workers.forkserver import Preloading
from feedline.workers.processes import fresh, start
from feedline.workers.processes.answers import Answers
from feedline.workers.processes.arena_view import ArenaView
from feedline.workers.processes.channel import Channel
from feedline.workers.processes.messages import Kind, Message, joined, receive, task_message
from feedline.workers.processes.payload import Payload
from feedline.workers.processes.stacks import Stacks, is_asleep
from feedline.workers.processes.worker import Link

_BIRTH_S = 8.0
"""Time within which a forked worker must reach the user's code. It takes milliseconds."""


class ProcessEngine(WorkerEngine):
    """Runs tasks in worker processes that write their batches into an arena.

    Args:
        worker_count: number of workers.
        arena: shared memory for the batches.
        context: a multiprocessing context, None for the program's default start method.
    """

    def __init__(self, worker_count: int, arena: Arena, context: BaseContext | None = None) -> None:
        super().__init__(worker_count)
        self._arena = arena
        self._view = ArenaView(arena)
        self._context = context
        self._channels: list[Channel] = []
        self._epoll: Any = None  # Any: an epoll object once it is open
        self._stacks: Stacks | None = None
        self._by_fd: dict[int, Channel] = {}
        self._answers = Answers()
        self._method = ""
        self._started = False
        self._preloading: Preloading | None = None
        self._payload: Payload | None = None
        """The serialised specification, the same for all workers that are not forked."""
        self._leaving: list[BaseProcess] = []
        """Replaced workers that may take a moment to end."""
        self._ended: list[BaseProcess] = []
        """The workers, after `close`."""
        self._has_called_workers = False
        """True if a method of the dataset was called in the workers since it was serialised."""

    def open(self, spec: WorkerSpec) -> None:
        lifetime.leave_if_imported()
        self._spec = spec
        self._method = lifetime.start_method(self._context)
        with lifetime.explained_start(self, spec):
            with interrupts.put_off(starts_process=False):  # otherwise an open file could be lost track of
                self._epoll = select.epoll()
                self._stacks = Stacks()
                for number in range(self.worker_count):
                    self._add(Channel(number))
            if self._method == "forkserver":
                self._preloading = lifetime.start_forkserver(spec, fresh.__name__)
            if self._method != "fork":
                self._payload = Payload(spec)

    def start(self) -> None:
        if self._started or self._spec is None:
            return
        self._started = True
        with lifetime.explained_start(self, self._spec):
            limits = self._before_forks()
            with interrupts.put_off():
                for channel in self._channels:
                    self._launch(channel, limits)
            if self._preloading is not None:
                self._preloading.report()

    def _before_forks(self) -> list[c_int]:
        """Inspect the dataset, and prepare libraries; return OpenBLAS's thread limits. Once for all workers."""
        if self._method != "fork":
            return []
        assert self._spec is not None
        handles.warn_about(self._spec.dataset)
        return openmp.prepare_fork()

    def _launch(self, channel: Channel, limits: list[c_int]) -> None:
        """Start the worker of a channel. Signals must be delayed meanwhile."""
        assert self._spec is not None
        assert self._stacks is not None
        link = Link(
            channel.number,
            channel.far,
            self._view,
            os.getpid(),
            self._stacks.far,
            channel.generation,
            threading.current_thread() is threading.main_thread(),
        )
        context = self._context or multiprocessing.get_context()
        if self._method == "fork":
            channel.deadline_s = time.monotonic() + _BIRTH_S
            process = start.start_forked(context, link, self._spec, limits)
        else:
            assert self._payload is not None
            process = start.start_fresh(context, link, self._payload, lifetime.process_name(channel.number))
        channel.process = process
        lifetime.workers.add(process)
        assert process.pid is not None
        try:
            channel.pidfd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            # The fork server, its parent, has already reaped it. The sentinel shows the same from now on.
            channel.pidfd = os.dup(process.sentinel)
        self._watch(channel, channel.pidfd)

    def _watch(self, channel: Channel, fd: int) -> None:
        self._epoll.register(fd, select.EPOLLIN)
        self._by_fd[fd] = channel

    @interrupts.put_off()
    def replace(self, worker: int) -> None:
        is_new = worker >= len(self._channels) or self._channels[worker].process is None
        with lifetime.explained_start(self, self._spec, closes=not is_new):
            channel = self._renew(worker) if worker < len(self._channels) else self._add(Channel(worker))
            if self._payload is not None and self._has_called_workers:
                assert self._spec is not None
                self._has_called_workers = False  # the calls were also made on the dataset of this process
                self._payload.close()
                self._payload = Payload(self._spec)
            self._launch(channel, self._before_forks())

    @interrupts.put_off(starts_process=False)
    def retire(self, worker: int) -> None:
        self._renew(worker)

    def _add(self, channel: Channel) -> Channel:
        """Add a channel for a worker that has not been started."""
        self._channels[channel.number : channel.number + 1] = [channel]
        self._watch(channel, channel.near.fileno())
        return channel

    def _renew(self, worker: int) -> Channel:
        """Drop a worker, if there is one; return a channel for its successor."""
        old = self._channels[worker]
        if old.process is None:
            return old
        self._ignore(old)
        self._drop_tasks(worker)
        with contextlib.suppress(OSError):  # it may be gone; otherwise it exits when it sees this
            old.near.shutdown(socket.SHUT_RDWR)
        if old.process is not None:
            self._leaving.append(old.process)
        old.close()
        self._leaving = [process for process in self._leaving if not lifetime.is_over(process)]
        return self._add(Channel(worker, old.generation + 1))

    def kill(self, worker: int) -> bool:
        process = self._channels[worker].process
        if process is None or self._channels[worker].dead:
            return False
        process.kill()
        return True

    def alive_s(self, worker: int) -> float:
        return self._channels[worker].alive_s

    def stack(self, worker: int) -> str | None:
        pid = self.pid(worker)
        return None if pid is None or self._stacks is None else self._stacks.of(pid)

    def pid(self, worker: int) -> int | None:
        channel = self._channels[worker]
        return None if channel.process is None or channel.dead else channel.process.pid

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [channel.process.pid or 0 for channel in self._channels if channel.process is not None]

    @property
    def worker_objects(self) -> list[BaseProcess]:
        return self._ended or [channel.process for channel in self._channels if channel.process is not None]

    def submit(self, worker: int, task: Task) -> None:
        try:
            message = task_message(task)
        except UNPICKLABLE as exc:
            raise unsendable(task.indices, exc) from exc
        if task.slot >= 0:
            self._answers.slots[task.id] = task.slot
        if type(task.indices) is Call:
            self._has_called_workers = True
        self._post(self._channels[worker], message)

    def submit_together(self, worker: int, tasks: list[Task]) -> None:
        if any(task.slot >= 0 or type(task.indices) is Call for task in tasks):
            raise NotImplementedError  # these need more than a message
        message = joined([task_message(task) for task in tasks])
        if message is None:
            raise NotImplementedError
        self._post(self._channels[worker], message)

    def _post(self, channel: Channel, message: Message) -> None:
        channel.unsent.append(message)
        try:
            channel.flush()
        except OSError as exc:  # no descriptor left for the memory of a long message
            channel.unsent.remove(message)
            if exc.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise TooManyOpenFiles("sending a task to a worker") from exc

    def revoke(self, worker: int) -> int | None:
        task_id = self._channels[worker].take_back()
        if task_id is not None:
            self._answers.slots.pop(task_id, None)
        return task_id

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results: list[Result] = []
        if worker is not None and not self._channels[worker].dead:
            self._collect_from(self._channels[worker], timeout_s, results)
            return results
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for channel in self._channels:
            if channel.unsent:
                channel.flush()
        while not results:
            wait = -1 if deadline is None else max(0.0, deadline - time.monotonic())
            if any(channel.deadline_s < math.inf for channel in self._channels):
                wait = self._look_at_births(wait, results)
                if results:
                    break
            ready = self._epoll.poll(wait)
            dead: list[Channel] = []
            for fd, _ in ready:
                channel = self._by_fd[fd]
                if fd == channel.pidfd:
                    dead.append(channel)
                else:
                    self._read(channel, results)
            for channel in dead:
                self._read(channel, results)
                results.append(self._report_death(channel))
            if deadline is not None and time.monotonic() >= deadline:
                break
        return results

    def _look_at_births(self, wait: float, results: list[Result]) -> float:
        """Give up on workers that have hung since their fork; return the longest wait before the next check."""
        for channel in self._channels:
            if time.monotonic() > channel.deadline_s:
                self._read(channel, results)  # its ALIVE message may be waiting unread
                if channel.deadline_s < math.inf:
                    self._give_up_on(channel)
        return _BIRTH_S / 8 if wait < 0 else min(wait, _BIRTH_S / 8)

    def _give_up_on(self, channel: Channel) -> None:
        """Kill a worker that has hung since its fork: its death is reported, and its successor may start."""
        assert channel.process is not None
        channel.deadline_s = math.inf
        if not is_asleep(channel.process.pid or 0):
            channel.deadline_s = time.monotonic() + _BIRTH_S  # it is running: the machine is busy
            return
        stack = self.stack(channel.number)
        channel.process.kill()
        channel.hang_error = WorkerDied(
            f"Worker {channel.number} (pid {channel.process.pid}) has hung since it was forked: another thread of this "
            "program held a lock at that moment, and the worker inherited it without the thread that would release it. "
            "Start workers while no other thread computes or draws random numbers, or use the start method "
            "'forkserver' (multiprocessing_context='forkserver'). "
            + ("" if stack is None else f"Where it hangs:\n{stack.rstrip()}")
        )

    def _collect_from(self, channel: Channel, timeout_s: float | None, results: list[Result]) -> None:
        """Wait for one worker alone: a blocking receive is one system call, where polling first would be two."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if channel.unsent:
                channel.flush()
            silent = False
            try:
                message = receive(channel.near, block=True)
            except BlockingIOError:  # nothing for LOOK_AROUND_S
                silent = True  # handled outside: Ctrl-C must not be raised with this exception as its context
            if silent:
                if time.monotonic() > channel.deadline_s:
                    self._give_up_on(channel)
                if channel.is_gone():
                    self._read(channel, results)
                    results.append(self._report_death(channel))
                    return
                if deadline is not None and time.monotonic() >= deadline:
                    return
                continue
            if message is None:
                return
            if message.kind is Kind.DONE or not self._keep(channel, message):
                results.append(self._answers.result(channel.number, message))
                self._read(channel, results)  # its other messages: one call for each would cost more
                return

    def _read(self, channel: Channel, results: list[Result]) -> None:
        while True:
            try:
                message = receive(channel.near, block=False)
            except (BlockingIOError, ConnectionResetError):
                break
            if message is None:
                break
            if message.kind is Kind.DONE or not self._keep(channel, message):
                results.append(self._answers.result(channel.number, message))
        if channel.unsent:
            channel.flush()

    def _keep(self, channel: Channel, message: Message) -> bool:
        """Keep messages that are not answers: notes until their batch arrives, trouble until the worker is gone."""
        if message.kind is Kind.NOTES:
            self._answers.keep_notes(message)
            return True
        if message.kind is Kind.ALIVE:
            channel.deadline_s, channel.alive_s = math.inf, time.monotonic()
            return True
        if message.kind is Kind.READY:
            channel.is_ready = True
            return True
        if message.kind is Kind.UNREADY:
            channel.unready = unpack_failure(message.body)
            return True
        return False

    def _report_death(self, channel: Channel) -> Result:
        """Report a worker's death, once."""
        assert channel.process is not None
        self._ignore(channel)
        death = channel.unready
        if death is None:
            last = channel.hang_error or lifetime.death_error(channel.process, channel.number)
            if isinstance(last, WorkerDied):
                if not channel.is_ready and self._method != "fork":
                    last.args = (f"{last} It ended before it was ready to work.",)
                last.was_ready = channel.is_ready
            death = last
        return Result(ResultKind.DIED, channel.number, -1, death)

    def _ignore(self, channel: Channel) -> None:
        """Stop receiving from a worker. May be called twice."""
        if channel.dead:
            return
        channel.dead = True
        for fd in (channel.pidfd, channel.near.fileno()):
            if fd >= 0:
                self._epoll.unregister(fd)
                del self._by_fd[fd]

    def _close(self) -> None:
        for channel in self._channels:
            self._drop_tasks(channel.number)
            with contextlib.suppress(OSError):  # closing is not enough: a fork of the trainer may have a copy of it
                channel.near.shutdown(socket.SHUT_RDWR)
            channel.near.close()
        processes = [channel.process for channel in self._channels if channel.process is not None] + self._leaving
        lifetime.end(processes)
        for process in processes:
            lifetime.is_over(process)  # closes its files; a process that survived `kill` keeps them
        self._ended = self.worker_objects
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        if self._payload is not None:
            self._payload.close()
        if self._stacks is not None:
            self._stacks.close()
        if self._epoll is not None:
            self._epoll.close()
