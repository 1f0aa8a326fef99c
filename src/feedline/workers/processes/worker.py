"""The worker's side: a loop that takes tasks from the training process, runs them and sends the answers.

How messages travel, and where batches are made, is up to the link: a socket and the arena on Linux (`link.py`), a pipe
and segments of shared memory elsewhere (`workers/portable`). A worker that is not forked imports only this side.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import pickle
import signal
import sys
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from feedline.abc.worker_spec import WorkerSpec
from feedline.memory import forks
from feedline.memory.codec import Codec, SlotWriter
from feedline.system import interrupts
from feedline.types import TIMES, Call, ResultKind, Task, WorkerIdentity
from feedline.workers import session
from feedline.workers.failure import pack_failure
from feedline.workers.heap import Heap, heap_of_this_process, keep_heap_warm
from feedline.workers.processes.messages import Kind, Message, apart, read_task
from feedline.workers.runner import Runner


class BatchMemory(ABC):
    """Where a worker makes its batches, and how they reach the training process."""

    @abstractmethod
    def writer(self, task: Task) -> SlotWriter:
        """Return an empty writer for the batch of a task. The batch before it has arrived."""

    @abstractmethod
    def answer(self, codec: Codec, batch: object, writer: SlotWriter, task: Task) -> Message:
        """Write a batch, in other memory if it does not fit, and return the message that delivers it."""

    @abstractmethod
    def part_with(self, task: Task, address: int, used: int, answer: Message) -> None:
        """Leave the memory of a task's writer to the objects in this process that still refer to it.

        Otherwise a dataset that caches collated batches, or a collate function that keeps the last batch, would see
        other batches appear there, and the training loop what they write. `answer` is not sent yet: it may be changed.
        Tests: tests/workers/processes/test_worker.py, tests/faults/test_kept.py
        """

    def discard(self) -> None:  # noqa: B027  most memory has nothing to release
        """Release what was prepared for a batch that will not be sent."""


class Link(ABC):
    """The connection of one worker to the training process. Every wait ends when that process does."""

    number: int
    generation: int
    """How many workers had this number before."""
    memory: BatchMemory

    def open(self) -> None:  # noqa: B027
        """Begin to watch the training process. Called once, in the worker."""

    @abstractmethod
    def next_message(self, heap: Heap) -> Message | None:
        """Wait for a message; None if the other side is gone. Notifies the heap of every wait without a message."""

    @abstractmethod
    def tell(self, message: Message) -> None:
        """Send a message as soon as the other side accepts it. Raises OSError if that side is gone."""

    @abstractmethod
    def has_closed(self) -> bool:
        """True if the training process has closed the connection."""

    def waiting_tasks(self) -> list[Task]:
        """Return the next tasks, which the training process may still take back."""
        return []

    def say_alive(self) -> None:
        """Report that this worker makes progress, without an answer."""
        self.tell(Message(Kind.ALIVE, 0, b""))


class PackedSpec(Protocol):
    """A worker specification that is sent to a worker which inherits nothing."""

    def open(self, worker: int) -> WorkerSpec:
        """Read it, in the worker. This imports the dataset's modules and torch."""


def serve(link: Link, spec: WorkerSpec) -> None:
    """Work until the training process closes the connection or ends."""
    link.open()
    _serve(link, spec)


def serve_fresh(link: Link, packed: PackedSpec) -> None:
    """Read the specification, in a worker that inherits nothing (spawn, forkserver), and work."""
    link.open()
    gc.freeze()  # as in a forked worker: collections while the dataset is read would visit all that was imported
    try:
        spec = packed.open(link.number)
    except Exception as exc:  # the user's own, from __setstate__ or an import
        not_found = session.not_found(exc) if isinstance(exc, AttributeError) else None
        with contextlib.suppress(OSError):  # the other side is gone
            _say_unready(link, not_found or exc)
        return
    gc.freeze()
    _serve(link, spec)


def _serve(link: Link, spec: WorkerSpec) -> None:
    try:
        runner = init_worker(spec, link)
        if runner.unready is not None:
            return _say_unready(link, runner.unready)
        link.tell(Message(Kind.READY, 0, b""))
        _work(link, runner, Codec(spec.framework))
    except (BrokenPipeError, ConnectionResetError):
        return  # the other side is gone
    finally:
        _finish()


def init_worker(spec: WorkerSpec, link: Link) -> Runner:
    """Set up this process as a worker: its signals, its heap, its dataset."""
    interrupts.ignore()
    signal.signal(signal.SIGTERM, functools.partial(_leave, link.has_closed))
    keep_heap_warm()
    # The random numbers of earlier workers with this number must not be drawn again.
    seed = spec.base_seed + link.number + link.generation * spec.worker_count
    identity = WorkerIdentity(link.number, spec.worker_count, seed, spec.dataset)
    return Runner(spec, identity, report_alive=link.say_alive)


def _leave(has_closed: Callable[[], bool], *_: object) -> None:
    """Leave the user's code if the training process is ending this worker, or die of a signal that somebody else sent.

    `finally` blocks and finalizers run in the first case: they may have to write what the user's code has gathered.
    """
    if has_closed():
        _finish()
        sys.exit()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _finish() -> None:
    """Let the user's finalizers run to their end. Called when there is no more work."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _say_unready(link: Link, exc: Exception) -> None:
    """Report to the training process why this worker cannot start."""
    link.tell(Message(Kind.UNREADY, 0, pack_failure(exc, f"in DataLoader worker process {link.number}")))


def _work(link: Link, runner: Runner, codec: Codec) -> None:
    heap = heap_of_this_process()
    while (message := link.next_message(heap)) is not None:
        if message.kind is not Kind.TASK:  # a failure to receive a task: pass it on
            link.tell(message)
            continue
        tasks = [read_task(single) for single in apart(message)]
        for task in tasks:
            if runner.announcer is not None:
                runner.announcer.announce(tasks[tasks.index(task) + 1 :] or link.waiting_tasks())
            for answer in answers(runner, codec, link.memory, link.number, task):
                link.tell(answer)
            if time.monotonic() >= heap.due_s:
                heap.worked()


def answers(runner: Runner, codec: Codec, memory: BatchMemory, number: int, task: Task) -> list[Message]:
    """Run a task as worker `number`; return the answer, after the notes if there are any."""
    if type(task.indices) is Call:  # of a method of the dataset
        result = runner.attempt(task, number, None)
        if result.kind is not ResultKind.FAILED:
            return [Message(Kind.DONE, task.id, b"")]
        return [_failed(task, number, result.payload)]
    writer = memory.writer(task)
    view, address = weakref.ref(writer.view), writer.address
    forks.unfinished = writer if writer.shared else None
    messages = _run(runner, codec, memory, number, task, writer)
    used = writer.used
    del writer
    forks.unfinished = None
    if used and view() is not None:  # the batch is gone, but its memory is still referenced
        try:
            memory.part_with(task, address, used, messages[-1])
        except OSError as exc:
            messages[-1] = _failed(task, number, exc)
    return messages


def _run(
    runner: Runner, codec: Codec, memory: BatchMemory, number: int, task: Task, writer: SlotWriter
) -> list[Message]:
    result = runner.serve(task, number, writer)
    messages: list[Message] = []
    try:
        if result.notes is not None or result.task_notes is not None:
            messages.append(Message(Kind.NOTES, task.id, pickle.dumps((result.notes, result.task_notes), 5)))
        if result.kind is ResultKind.DONE:
            answer = memory.answer(codec, result.payload, writer, task)
            began, fetch, collate, _, _ = result.times
            answer.busy_ns = time.monotonic_ns() - began
            answer.times = TIMES.pack(began, fetch, collate, *runner.clock.cpu.spent(answer.busy_ns))
            return [*messages, answer]
        memory.discard()
        if result.kind is ResultKind.FAILED:
            return [*messages, _failed(task, number, result.payload)]
        return [*messages, Message(Kind.EMPTY if result.kind is ResultKind.EMPTY else Kind.ENDED, task.id, b"")]
    except Exception as exc:  # such as the pickling of a batch, or of the user's state
        memory.discard()
        return [_failed(task, number, exc)]


def _failed(task: Task, number: int, exc: BaseException) -> Message:
    return Message(Kind.FAILED, task.id, pack_failure(exc, f"in DataLoader worker process {number}"))
