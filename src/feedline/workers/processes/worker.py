"""The worker's side: a loop that takes tasks from its socket and writes batches into slots.

The worker ends when its socket closes or when the training process is gone, whichever it notices first. It watches that
process through a descriptor (`pidfd`), because other children of the trainer may hold copies of the socket and keep it
open.
"""

from __future__ import annotations

import faulthandler
import functools
import os
import pickle
import select
import signal
import socket
import time
import weakref
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any

import numpy as np

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import TransportError
from feedline.memory.codec import Codec, MessageWriter, SlotFull, SlotWriter
from feedline.memory.sparse import map_file, why_no_more
from feedline.types import TIMES, Call, ResultKind, Task
from feedline.workers.failure import pack_failure
from feedline.workers.heap import Heap, heap_of_this_process
from feedline.workers.processes.arena_view import ArenaView
from feedline.workers.processes.messages import (
    Kind,
    Message,
    apart,
    read_task,
    receive,
    send,
    set_receive_timeout,
    waiting_tasks,
)
from feedline.workers.runner import Runner
from feedline.workers.worker_setup import end_with, finish, init_worker

_OVERFLOW_BYTES = 64 << 30
"""Address space for a batch that does not fit its slot; only the part that is written takes memory."""


STACK_SIGNAL = signal.SIGRTMAX - 2
"""The signal on which a worker writes its stacks, in C, even if it is stuck. Hardly any program uses it."""


_LOOK_AROUND_S = 0.2
"""How often an idle worker checks that the training process lives. Usually the socket shows its end at once."""


@dataclass
class Link:
    """The connection of one worker to the training process."""

    number: int
    sock: socket.socket
    arena: ArenaView
    trainer_pid: int
    stacks_fd: int = -1
    """Where the worker's stacks are written when the training process requests them."""
    generation: int = 0
    """How many workers had this number before."""
    started_by_main_thread: bool = False

    def __getstate__(self) -> dict[str, object]:
        fds = {"sock": reduction.DupFd(self.sock.fileno()), "stacks_fd": reduction.DupFd(self.stacks_fd)}
        return {**self.__dict__, **fds}

    def __setstate__(self, state: dict[str, Any]) -> None:
        fd = state.pop("sock").detach()
        state["stacks_fd"] = state["stacks_fd"].detach()
        self.__dict__.update(state)
        self.sock = socket.socket(fileno=fd)


def serve(link: Link, spec: WorkerSpec) -> None:
    """Work until the training process closes the socket or ends."""
    trainer = _Trainer(link)
    end_with(link.trainer_pid, trainer.fd, started_by_main_thread=link.started_by_main_thread)
    if link.stacks_fd >= 0:
        faulthandler.register(STACK_SIGNAL, file=link.stacks_fd, all_threads=True)
    try:
        say_alive = functools.partial(trainer.tell, Message(Kind.ALIVE, 0, b""))
        runner = init_worker(spec, link.number, link.generation, say_alive, trainer.has_closed)
        if runner.unready is not None:
            return say_unready(link, runner.unready)
        trainer.tell(Message(Kind.READY, 0, b""))
        _work(link, trainer, runner, Codec(spec.framework))
    except (BrokenPipeError, ConnectionResetError):
        return  # the other side is gone
    finally:
        finish()


def say_unready(link: Link, exc: Exception) -> None:
    """Report to the training process why this worker cannot start."""
    failure = pack_failure(exc, f"in DataLoader worker process {link.number}")
    _Trainer(link).tell(Message(Kind.UNREADY, 0, failure))


def _work(link: Link, trainer: _Trainer, runner: Runner, codec: Codec) -> None:
    heap = heap_of_this_process()
    while (message := trainer.next_message(heap)) is not None:
        if message.kind is not Kind.TASK:  # a failure to receive a task: pass it on
            trainer.tell(message)
            continue
        tasks = [read_task(single) for single in apart(message)]
        for task in tasks:
            if runner.announcer is not None:
                runner.announcer.announce(tasks[tasks.index(task) + 1 :] or trainer.waiting_tasks())
            _do(link, trainer, runner, codec, task)
            heap.worked()


def _do(link: Link, trainer: _Trainer, runner: Runner, codec: Codec, task: Task) -> None:
    """Run a task, and send the answer."""
    if type(task.indices) is Call:
        trainer.tell(_call(runner, link, task))
        return
    buffer = link.arena.writer(task.slot)
    if task.slot < 0:
        answer, notes = _answer(runner, codec, link, task, buffer)
    else:
        memory, address = weakref.ref(buffer.view), buffer.address
        answer, notes = _answer(runner, codec, link, task, buffer)
        used = buffer.used
        del buffer
        if used and memory() is not None:  # the batch is gone, but its memory is still referenced
            try:
                link.arena.part_with(task.slot, address, used)
            except OSError as exc:
                answer = Message(Kind.FAILED, task.id, pack_failure(exc, f"in worker process {link.number}"))
    if notes is not None:
        trainer.tell(notes)
    trainer.tell(answer)


def _call(runner: Runner, link: Link, task: Task) -> Message:
    """Call a method of the dataset."""
    result = runner.attempt(task, link.number, None)
    if result.kind is ResultKind.FAILED:
        return Message(
            Kind.FAILED, task.id, pack_failure(result.payload, f"in DataLoader worker process {link.number}")
        )
    return Message(Kind.DONE, task.id, b"")


def _answer(runner: Runner, codec: Codec, link: Link, task: Task, buffer: SlotWriter) -> tuple[Message, Message | None]:
    """Run a task; return its result, and notes if there are any."""
    where = f"in DataLoader worker process {link.number}"
    result = runner.serve(task, link.number, buffer)
    notes = None
    try:
        if result.notes is not None or result.task_notes is not None:
            notes = Message(Kind.NOTES, task.id, pickle.dumps((result.notes, result.task_notes), 5))
        if result.kind is ResultKind.FAILED:
            return Message(Kind.FAILED, task.id, pack_failure(result.payload, where)), notes
        if result.kind is ResultKind.EMPTY:
            return Message(Kind.EMPTY, task.id, b""), notes
        if result.kind is ResultKind.ENDED:
            return Message(Kind.ENDED, task.id, b""), notes
        answer = _send_batch(codec, result.payload, buffer, task)
        began, fetch, collate, _, _ = result.task_times
        answer.busy_ns = time.monotonic_ns() - began
        answer.times = TIMES.pack(began, fetch, collate, *runner.cpu.spent(answer.busy_ns))
        return answer, notes
    except (Exception, MemoryError) as exc:
        return Message(Kind.FAILED, task.id, pack_failure(exc, where)), None


def _send_batch(codec: Codec, batch: object, buffer: SlotWriter, task: Task) -> Message:
    try:
        body = codec.encode(batch, buffer)
        if isinstance(buffer, MessageWriter):
            body += buffer.contents()
        return Message(Kind.DONE, task.id, body, buffer.used)
    except SlotFull:
        pass
    return _send_overflow(codec, batch, task.id)


def _send_overflow(codec: Codec, batch: object, task_id: int) -> Message:
    """Send a batch in its own memory, because it has no slot or does not fit into it."""
    mapping, fd = map_file(_OVERFLOW_BYTES)
    view = np.frombuffer(mapping, np.uint8)
    writer = SlotWriter(view, view.__array_interface__["data"][0])
    try:
        header = codec.encode(batch, writer)
    except SlotFull:
        os.close(fd)
        raise TransportError(
            f"A batch is larger than the {len(mapping) >> 20} MiB that this worker can send. "
            f"{why_no_more(len(mapping), _OVERFLOW_BYTES)} Or use a smaller batch size."
        ) from None
    except BaseException:
        os.close(fd)
        raise
    os.ftruncate(fd, max(writer.used, 1))
    return Message(Kind.DONE, task_id, header, writer.used, fd=fd)


class _Trainer:
    """The worker's connection to the training process. Every wait ends when that process does.

    Its end of the socket may stay open in its other children, so the socket alone would not show its end.
    """

    def __init__(self, link: Link) -> None:
        self._sock = link.sock
        self._end = select.poll()  # select() does not support descriptors above 1023
        self.fd = os.pidfd_open(link.trainer_pid)
        self._end.register(self.fd, select.POLLIN)
        set_receive_timeout(link.sock, _LOOK_AROUND_S)

    def next_message(self, heap: Heap) -> Message | None:
        """Wait for a message; None if the other side is gone. Notifies the heap of every wait without a message."""
        while True:
            try:
                return receive(self._sock, block=True)
            except BlockingIOError:
                if self._end.poll(0):
                    return None
                heap.rested()

    def has_closed(self) -> bool:
        """True if the training process has closed the connection."""
        poll = select.poll()
        poll.register(self._sock, select.POLLRDHUP)
        return bool(poll.poll(0))

    def waiting_tasks(self) -> list[Task]:
        """Return the next tasks, which the training process may still take back."""
        return [read_task(message) for message in waiting_tasks(self._sock)]

    def tell(self, message: Message) -> None:
        """Send a message as soon as the socket accepts it."""
        while True:
            try:
                return send(self._sock, message, block=False)
            except BlockingIOError:  # many answers are waiting to be read
                writable = select.poll()
                writable.register(self._sock, select.POLLOUT)
                if not writable.poll(_LOOK_AROUND_S * 1000) and self._end.poll(0):
                    raise BrokenPipeError from None
