"""The training process's side, for systems without the features that `workers/processes` needs (macOS, Windows).

Each worker has a pipe, a lane of waiting tasks, and a thread in this process. The thread takes a task from the lane,
sends it, waits for the answer or the worker's end, and puts the outcome into one queue for all workers. A worker has
one task at a time, so waiting tasks can always be revoked, and it gets its next task regardless of what the training
loop is doing.

Each thread touches only its worker's connection and the sentinel of its process; the consumer's thread touches
everything else. The death of an idle worker is noticed when it is given a task.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import pickle
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import WorkerDied
from feedline.memory.reading import Reader, SegmentReader
from feedline.system import interrupts, openmp
from feedline.system.mailbox import Mailbox
from feedline.types import Result, ResultKind, SlotBatch, Task
from feedline.workers import handles, lifetime, session
from feedline.workers.base import Lane, LaneEngine
from feedline.workers.failure import UNPICKLABLE, unpack_failure, unsendable
from feedline.workers.fork_safety import quiesce_threads
from feedline.workers.portable import worker as worker_side
from feedline.workers.portable.segments import BatchBytes, Inbox, not_while_forking, remove_segment
from feedline.workers.portable.worker import Answer, Link, Request, unpacked

_THREAD_PATIENCE_S = 1.0
"""How long `close` waits for a thread whose worker is gone, and which has nothing left to wait for."""


@dataclass(slots=True)
class _Errand:
    """A request in a worker's lane."""

    id: int
    """Id of its task."""
    segment: str
    data: bytes


@dataclass
class _Channel:
    """A worker that was started, as seen from the training process."""

    number: int
    lane: Lane[_Errand]
    pipe: Connection
    process: BaseProcess
    thread: threading.Thread | None = None
    generation: int = 0


class PortableEngine(LaneEngine[_Errand]):
    """Runs tasks in worker processes that return each batch in memory of its own.

    Args:
        worker_count: number of workers.
        context: a multiprocessing context, None for the program's default start method.
    """

    def __init__(self, worker_count: int, context: BaseContext | None = None) -> None:
        super().__init__(worker_count)
        self._context: Any = context  # Any: the base class does not declare `Process`
        self._started = False
        self._channels: list[_Channel] = []
        self._inbox = Inbox()
        self._prefix = f"feedline_{secrets.token_hex(4)}_"  # macOS allows names of 30 characters
        self._leaving: list[BaseProcess] = []
        """Workers that were replaced or retired, and may take a moment to end."""
        self._retired: set[int] = set()
        self._ended: list[BaseProcess] = []
        """The workers, after `close`."""

    def open(self, spec: WorkerSpec) -> None:
        lifetime.leave_if_imported()
        self._spec = spec

    def start(self) -> None:
        if self._spec is None or self._started:
            return
        self._started = True
        method = lifetime.start_method(self._context)
        with lifetime.explained_start(self, self._spec), interrupts.put_off(starts_process=False):
            preloading = None
            if method == "forkserver":
                preloading = lifetime.start_forkserver(self._spec, worker_side.__name__)
            if os.name == "posix":
                resource_tracker.ensure_running()  # one for all: a worker's own would remove segments when it ends
            for number in range(self.worker_count):
                self._channels.append(self._launch(number, 0))
            if preloading is not None:
                preloading.report()
            for channel in self._channels:  # after the last fork
                self._look_after(channel)

    def _launch(self, number: int, generation: int) -> _Channel:
        assert self._spec is not None
        context = self._context or multiprocessing.get_context()
        if lifetime.start_method(context) == "fork":
            openmp.prepare_fork()
            handles.warn_about(self._spec.dataset)
        with interrupts.put_off():
            pipe, process = _start_worker(context, number, generation, self._spec)
            lifetime.workers.add(process)
            return _Channel(number, self._lanes[number], pipe, process, generation=generation)

    def _look_after(self, channel: _Channel) -> None:
        channel.thread = threading.Thread(
            target=_look_after,
            args=(
                channel,
                channel.process.sentinel,
                self._answers,
                self._inbox,
                functools.partial(self._note_alive, channel.number),
            ),
            name=f"feedline-worker-{channel.number}",
            daemon=True,
        )
        channel.thread.start()

    @interrupts.put_off(starts_process=False)
    def replace(self, worker: int) -> None:
        generation = 0
        is_new = worker >= len(self._channels) or worker in self._retired
        if worker < len(self._channels):
            self.retire(worker)
            generation = self._channels[worker].generation + 1
        elif worker == len(self._lanes):
            self._lanes.append(queue.SimpleQueue())
        with lifetime.explained_start(self, self._spec, closes=not is_new):
            channel = self._launch(worker, generation)
        self._channels[worker : worker + 1] = [channel]
        self._retired.discard(worker)
        self._look_after(channel)

    @interrupts.put_off(starts_process=False)
    def retire(self, worker: int) -> None:
        """Stop listening to a worker, and let it end. May be called twice."""
        if worker in self._retired:
            return
        self._retired.add(worker)
        old = self._channels[worker]
        self._drop_tasks(worker)
        self._end_lane(worker)
        if old.thread is not None:
            old.thread.join(_THREAD_PATIENCE_S)
        self._leaving.append(old.process)
        self._leaving = [process for process in self._leaving if not lifetime.is_over(process)]

    def kill(self, worker: int) -> bool:
        self._channels[worker].process.kill()
        return True

    def pid(self, worker: int) -> int | None:
        return self._channels[worker].process.pid if self._channels and worker not in self._retired else None

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [channel.process.pid or 0 for channel in self._present()]

    @property
    def worker_objects(self) -> list[BaseProcess]:
        return self._ended or [channel.process for channel in self._present()]

    def _present(self) -> list[_Channel]:
        return [channel for channel in self._channels if channel.number not in self._retired]

    def submit(self, worker: int, task: Task) -> None:
        segment = f"{self._prefix}{task.id}"
        try:
            data = pickle.dumps(Request(task, segment), 5)
        except UNPICKLABLE as exc:
            raise unsendable(task.indices, exc) from exc
        self._lanes[worker].put(_Errand(task.id, segment, data))

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        return [self._finish(result) for result in super().collect(timeout_s, worker)]

    def _finish(self, result: Result) -> Result:
        """Do what only the consumer's thread may do: unpack the user's exceptions, and examine processes."""
        if result.kind is ResultKind.FAILED and isinstance(result.payload, bytes):
            result.payload = unpack_failure(result.payload)
        elif result.kind is ResultKind.DIED:
            if isinstance(result.payload, bytes):  # it could not get ready
                result.payload = unpack_failure(result.payload)
            else:
                death = lifetime.death_error(self._channels[result.worker].process, result.worker)
                if isinstance(death, WorkerDied):
                    death.was_ready = bool(result.busy_ns)
                result.payload = death
        return result

    def _close(self) -> None:
        self._end_lanes()
        for channel in self._channels:
            if channel.thread is None:
                channel.pipe.close()
            else:
                _shut_down(channel.pipe)
        processes = [channel.process for channel in self._present()] + self._leaving
        lifetime.end(processes)
        for channel in self._channels:
            if channel.thread is not None and channel.thread is not threading.current_thread():
                channel.thread.join(_THREAD_PATIENCE_S)
        for process in processes:
            lifetime.is_over(process)  # closes its files; a process that survived `kill` keeps them
        self._ended = self.worker_objects
        self._channels.clear()
        self._answers = Mailbox()  # drops the batches that were not collected


def _shut_down(pipe: Connection) -> None:
    """Let a worker that is inside the user's code know that it is not needed any more; its thread closes the pipe."""
    if os.name == "posix":  # elsewhere the end of a worker runs none of its code
        with not_while_forking, contextlib.suppress(OSError), socket.socket(fileno=os.dup(pipe.fileno())) as sock:
            sock.shutdown(socket.SHUT_RDWR)


# Any: the base class of contexts does not declare `Process`.
def _start_worker(context: Any, number: int, generation: int, spec: WorkerSpec) -> tuple[Connection, BaseProcess]:
    with not_while_forking:
        near, far = context.Pipe()
        worker_side.ends.update((near, far))
    process = context.Process(
        target=worker_side.serve,
        args=(Link(number, far, generation), session.Sent(spec)),
        name=lifetime.process_name(number),
        daemon=True,
    )
    try:
        safe_start = quiesce_threads() if lifetime.start_method(context) == "fork" else session.without_file()
        with safe_start:
            process.start()
    except BaseException:
        near.close()
        raise
    finally:
        with not_while_forking:
            far.close()  # otherwise the pipe would stay open without the worker
    return near, process


def _look_after(
    channel: _Channel, sentinel: int, answers: Mailbox[Result], inbox: Inbox, note_alive: Callable[[], None]
) -> None:
    """Send a worker its tasks one by one and pass on its answers, until the lane ends or the worker dies."""
    number = channel.number
    birth = _hear(channel.pipe, sentinel, note_alive)
    if birth is None or birth.kind is ResultKind.DIED:  # it could not get ready
        answers.put(Result(ResultKind.DIED, number, -1, None if birth is None else birth.body))
    is_ready = birth is not None and birth.kind is not ResultKind.DIED
    while is_ready and (errand := channel.lane.get()) is not None:
        answer = _exchange(channel.pipe, sentinel, errand, note_alive)
        if answer is None:
            remove_segment(errand.segment)
            answers.put(Result(ResultKind.DIED, number, -1, busy_ns=1))
            break
        answers.put(result_of(number, errand.id, answer, lambda batch: SegmentReader(inbox.open(batch))))
        del answer  # an idle thread keeps no batch alive
    with not_while_forking:  # otherwise a forked worker might take another file with that number for the pipe
        channel.pipe.close()


def _exchange(pipe: Connection, sentinel: int, errand: _Errand, note_alive: Callable[[], None]) -> Answer | None:
    """Send a request and wait for the answer; None if the worker dies without one."""
    try:
        pipe.send_bytes(errand.data)
    except OSError:
        return None
    return _hear(pipe, sentinel, note_alive)


def _hear(pipe: Connection, sentinel: int, note_alive: Callable[[], None]) -> Answer | None:
    """Wait for a worker's answer; None if it dies without one."""
    while True:
        try:
            if pipe not in wait([pipe, sentinel]):
                return None
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            return None
        if data != worker_side.ALIVE:
            return unpacked(data)
        note_alive()


def result_of(number: int, task_id: int, answer: Answer, open_bytes: Callable[[BatchBytes], Reader]) -> Result:
    """Convert a worker's answer to a result; `open_bytes` returns the reader of its batch."""
    if answer.batch_bytes is None:
        return Result(answer.kind, number, task_id, answer.body, notes=answer.notes)
    try:
        reader = open_bytes(answer.batch_bytes)
    except Exception as exc:  # report anything: the training loop is waiting
        return Result(ResultKind.FAILED, number, task_id, exc)
    slot_batch = SlotBatch(answer.body, -1, answer.batch_bytes.size, reader)
    result = Result(ResultKind.DONE, number, task_id, slot_batch, answer.busy_ns, answer.notes)
    result.times, result.task_notes = answer.times, answer.task_notes
    return result
