"""Runs tasks in worker processes: starts them, sends tasks, collects answers, detects deaths.

How workers are connected is up to the transport: `arena.py` on Linux, `workers/portable` elsewhere. Messages that a
worker sent before it died are read before its death is reported.
"""

from __future__ import annotations

import errno
import math
import multiprocessing
import os
import selectors
import time
from multiprocessing import connection
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
from feedline.workers.processes import worker as worker_side
from feedline.workers.processes.channel import Channel, Transport
from feedline.workers.processes.messages import Kind, Message, joined, result_of, task_message

_BIRTH_S = 8.0
"""Time within which a forked worker must reach the user's code. It takes milliseconds."""

_CHECK_S = 1.0
"""How often to check that workers that were just forked do not hang."""


class ProcessEngine(WorkerEngine):
    """Runs tasks in worker processes.

    Args:
        worker_count: number of workers.
        arena: shared memory for the batches; None where processes cannot share an arena.
        context: a multiprocessing context, None for the program's default start method.
    """

    def __init__(self, worker_count: int, arena: Arena | None, context: BaseContext | None = None) -> None:
        super().__init__(worker_count)
        self._method = lifetime.start_method(context)
        self._transport = _transport(arena, context or multiprocessing.get_context(self._method))
        self._channels: list[Channel] = []
        self._selector: selectors.BaseSelector | None = None
        """Waits for all workers; not on Windows, where pipes cannot be selected."""
        self._slots: dict[int, int] = {}
        """By task: the slot that its batch is written into."""
        self._notes: dict[int, bytes] = {}
        """By task: what its worker has sent ahead of the batch."""
        self._started = False
        self._leaving: list[BaseProcess] = []
        """Replaced workers that may take a moment to end."""
        self._ended: list[BaseProcess] = []
        """The workers, after `close`."""

    def open(self, spec: WorkerSpec) -> None:
        lifetime.leave_if_imported()
        self._spec = spec
        with lifetime.explained_start(self, spec):
            if self._method == "forkserver":
                lifetime.start_forkserver(spec, worker_side.__name__)
            self._transport.open(spec)
            with interrupts.put_off(starts_process=False):  # otherwise an open file could be lost track of
                if os.name == "posix":
                    self._selector = selectors.DefaultSelector()
                for number in range(self.worker_count):
                    self._channels.append(self._connect(number))

    def start(self) -> None:
        if self._started or self._spec is None:
            return
        self._started = True
        with lifetime.explained_start(self, self._spec), interrupts.put_off():
            self._launch(self._channels)

    def _launch(self, channels: list[Channel]) -> None:
        """Start the workers of some channels. Signals must be delayed meanwhile."""
        assert self._spec is not None
        limits = []
        if self._method == "fork":  # once for all of them
            handles.warn_about(self._spec.dataset)
            limits = openmp.prepare_fork()
        for channel in channels:
            if self._method == "fork":
                channel.deadline_s = time.monotonic() + _BIRTH_S
            channel.process = self._transport.launch(channel, self._spec, limits)
            lifetime.workers.add(channel.process)
            channel.ended = lifetime.end_of(channel.process)
            if self._selector is not None:
                self._selector.register(channel.ended, selectors.EVENT_READ, (channel, True))

    def _connect(self, number: int, generation: int = 0) -> Channel:
        channel = self._transport.connect(number, generation)
        if self._selector is not None:
            self._selector.register(channel.near, selectors.EVENT_READ, (channel, False))
        return channel

    @interrupts.put_off()
    def replace(self, worker: int) -> None:
        is_new = worker >= len(self._channels) or self._channels[worker].process is None
        with lifetime.explained_start(self, self._spec, closes=not is_new):
            if worker == len(self._channels):
                self._channels.append(self._connect(worker))
            self._launch([self._renew(worker)])

    @interrupts.put_off(starts_process=False)
    def retire(self, worker: int) -> None:
        self._renew(worker)

    def _renew(self, worker: int) -> Channel:
        """Drop a worker, if there is one; return a channel for its successor."""
        old = self._channels[worker]
        if old.process is None:
            return old
        self._ignore(old)
        self._drop_tasks(worker)
        old.hang_up()  # it may be gone; otherwise it exits when it sees this
        self._leaving.append(old.process)
        old.close()
        self._leaving = [process for process in self._leaving if not lifetime.is_over(process)]
        self._channels[worker] = channel = self._connect(worker, old.generation + 1)
        return channel

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
        return None if pid is None else self._transport.stack(pid)

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
            self._slots[task.id] = task.slot
        if type(task.indices) is Call:
            self._transport.called()
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
            self._slots.pop(task_id, None)
        return task_id

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        results: list[Result] = []
        if worker is not None and self._transport.waits_for_one and not self._channels[worker].dead:
            self._collect_from(self._channels[worker], timeout_s, results)
            return results
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        for channel in self._channels:
            if channel.unsent:
                channel.flush()
        while not results:
            wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if any(channel.deadline_s < math.inf for channel in self._channels):
                self._look_at_births(results)
                if results:
                    break
                wait_s = _CHECK_S if wait_s is None else min(wait_s, _CHECK_S)
            for channel, has_ended in self._wait(wait_s):
                self._read(channel, results)
                if has_ended and not channel.dead:
                    results.append(self._report_death(channel))
            if deadline is not None and time.monotonic() >= deadline:
                break
        return results

    def _wait(self, timeout_s: float | None) -> list[tuple[Channel, bool]]:
        """Wait until a worker has sent something or ended: return the channels to read, and whether it has ended."""
        if self._selector is not None:
            return [key.data for key, _ in self._selector.select(timeout_s)]
        parts: dict[Any, tuple[Channel, bool]] = {}  # Any: whatever `wait` accepts
        for channel in self._channels:
            if channel.process is not None and not channel.dead:
                parts |= {channel.near: (channel, False), channel.ended: (channel, True)}
        return [parts[part] for part in connection.wait(list(parts), timeout_s)]

    def _look_at_births(self, results: list[Result]) -> None:
        """Give up on workers that have hung since their fork."""
        for channel in self._channels:
            if time.monotonic() > channel.deadline_s:
                self._read(channel, results)  # its ALIVE message may be waiting unread
                if channel.deadline_s < math.inf:
                    self._give_up_on(channel)

    def _give_up_on(self, channel: Channel) -> None:
        """End a worker that has hung since its fork, unless it is only slow."""
        assert channel.process is not None
        pid = channel.process.pid or 0
        if not lifetime.is_asleep(pid):
            channel.deadline_s = time.monotonic() + _BIRTH_S  # it is running: the machine is busy
            return
        channel.deadline_s = math.inf
        stack = self._transport.stack(pid)
        channel.process.kill()
        channel.hang_error = WorkerDied(
            f"Worker {channel.number} (pid {pid}) has hung since it was forked: another thread of this program held a "
            "lock at that moment, and the worker inherited it without the thread that would release it. Start workers "
            "while no other thread computes or draws random numbers, or use the start method 'forkserver' "
            "(multiprocessing_context='forkserver'). " + ("" if stack is None else f"Where it hangs:\n{stack.rstrip()}")
        )

    def _collect_from(self, channel: Channel, timeout_s: float | None, results: list[Result]) -> None:
        """Wait for one worker alone: a blocking receive is one system call, where polling first would be two."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not results:
            if channel.unsent:
                channel.flush()
            silent = False
            try:
                message = channel.receive(block=True)
            except BlockingIOError:
                silent = True  # handled outside: Ctrl-C must not be raised with this exception as its context
            if silent:
                if time.monotonic() > channel.deadline_s:
                    self._give_up_on(channel)
                if channel.is_gone():
                    self._read(channel, results)
                    results.append(self._report_death(channel))
                if deadline is not None and time.monotonic() >= deadline:
                    return
                continue
            if message is None:
                return
            self._take(channel, message, results)
        self._read(channel, results)  # its other messages: one call for each would cost more

    def _read(self, channel: Channel, results: list[Result]) -> None:
        """Take everything that a worker has sent, and send it what the connection accepts then."""
        while True:
            try:
                message = channel.receive()
            except BlockingIOError:
                break
            if message is None:
                break
            self._take(channel, message, results)
        if channel.unsent:
            channel.flush()

    def _take(self, channel: Channel, message: Message, results: list[Result]) -> None:
        """Turn an answer into a result; keep notes until their batch arrives, and trouble until the worker is gone."""
        kind = message.kind
        if kind is Kind.NOTES:
            self._notes[message.task_id] = message.body
        elif kind is Kind.ALIVE:
            channel.deadline_s, channel.alive_s = math.inf, time.monotonic()
        elif kind is Kind.READY:
            channel.is_ready = True
        elif kind is Kind.UNREADY:
            channel.unready = unpack_failure(message.body)
        else:
            slot = self._slots.pop(message.task_id, -1) if self._slots else -1
            notes = self._notes.pop(message.task_id, None) if self._notes else None
            try:
                reader = channel.reader(message)
            except OSError as exc:
                results.append(Result(ResultKind.FAILED, channel.number, message.task_id, exc))
                return
            results.append(result_of(channel.number, message, notes, slot, reader))

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
        if self._selector is not None:
            self._selector.unregister(channel.near)
            self._selector.unregister(channel.ended)
        channel.forget()

    def _close(self) -> None:
        for channel in self._channels:
            self._drop_tasks(channel.number)
            channel.hang_up()
        processes = [channel.process for channel in self._channels if channel.process is not None] + self._leaving
        lifetime.end(processes)
        for process in processes:
            lifetime.is_over(process)  # closes its files; a process that survived `kill` keeps them
        self._ended = self.worker_objects
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        self._transport.close()
        if self._selector is not None:
            self._selector.close()


def _transport(arena: Arena | None, context: BaseContext) -> Transport:
    if arena is None:
        from feedline.workers.portable.pipes import PipeTransport

        return PipeTransport(context)
    from feedline.workers.processes.arena import ArenaTransport

    return ArenaTransport(arena, context)
