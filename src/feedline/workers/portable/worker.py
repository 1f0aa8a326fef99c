"""The worker's side: takes one request at a time from its pipe and answers it; exits when the pipe closes.

The pipe closes with the training process, provided that no other process has a copy of that process's end. A forked
worker closes the copies it inherits; a process that the program itself forks, and that outlives it, keeps them.
"""

from __future__ import annotations

import pickle
import select
import time
import weakref
from dataclasses import dataclass
from multiprocessing.connection import Connection

from feedline.abc.worker_spec import WorkerSpec
from feedline.memory.codec import Codec, SlotFull, SlotWriter
from feedline.types import NO_TIMES, Notes, ResultKind, Task, TaskNotes, TaskTimes
from feedline.workers.failure import pack_failure
from feedline.workers.fork_safety import reset_in_child
from feedline.workers.heap import Heap, heap_of_this_process
from feedline.workers.portable.segments import BatchBytes, Outbox
from feedline.workers.runner import Runner
from feedline.workers.session import Sent
from feedline.workers.worker_setup import finish, init_worker

_IDLE_MS = 200
"""Idle time after which a worker checks for free memory to return; see `Heap`."""


@dataclass(slots=True)
class Request:
    """A request from the training process."""

    task: Task
    segment: str
    """Name for the memory of the batch, if it needs any."""


@dataclass(slots=True)
class Answer:
    """A worker's answer to a request."""

    kind: ResultKind
    body: bytes = b""
    """DONE: the header of the batch; FAILED: the packed exception."""
    batch_bytes: BatchBytes | None = None
    """DONE: the bytes that the header refers to."""
    busy_ns: int = 0
    notes: Notes | None = None
    times: TaskTimes = NO_TIMES
    """As in `Result`, like `task_notes`."""
    task_notes: TaskNotes | None = None


@dataclass
class Link:
    """The connection of one worker to the training process."""

    number: int
    pipe: Connection
    generation: int = 0


ALIVE = b""
"""Sent instead of an answer while the samples before those of a task are being read."""

ends: weakref.WeakSet[Connection] = weakref.WeakSet()
"""The ends of all pipes between workers and the training process that this process has."""


def serve(link: Link, sent: Sent) -> None:
    """Answer requests until the pipe is closed."""
    spec: WorkerSpec = sent.value
    for end in list(ends):  # inherited by fork
        if end is not link.pipe:
            end.close()
    reset_in_child(spec.dataset)
    # While a task is done, only the end of the pipe can be read from it.
    runner = init_worker(spec, link.number, link.generation, lambda: link.pipe.send_bytes(ALIVE), link.pipe.poll)
    codec = Codec(spec.framework)
    outbox = Outbox()
    birth = Answer(ResultKind.ENDED)
    if runner.unready is not None:
        birth = Answer(ResultKind.DIED, pack_failure(runner.unready, f"in DataLoader worker process {link.number}"))
    if not _send(link.pipe, birth) or runner.unready is not None:
        return
    heap = heap_of_this_process()
    waiting = _waiting_for(link.pipe)
    try:
        while (data := _receive(link.pipe, waiting, heap)) is not None:
            if not _send(link.pipe, answer_to(pickle.loads(data), runner, codec, outbox, link.number)):
                return
            heap.worked()
    finally:
        finish()


def _send(pipe: Connection, answer: Answer) -> bool:
    """Send an answer; False if the training process does not listen any more."""
    try:
        pipe.send_bytes(packed(answer))
    except OSError:
        return False
    return True


def packed(answer: Answer) -> bytes:
    """Return an answer as bytes; if it cannot be pickled, return that failure instead."""
    try:
        return pickle.dumps(answer, 5)
    except Exception as exc:  # the user's state_dict holds something that cannot be pickled
        failure = pack_failure(exc, "in a DataLoader worker process")
        return pickle.dumps(Answer(ResultKind.FAILED, failure), 5)


def unpacked(data: bytes) -> Answer:
    """Return the answer in these bytes, in the training process."""
    try:
        answer: Answer = pickle.loads(data)
    except Exception as exc:  # raised while a user's state was unpickled
        return Answer(ResultKind.FAILED, pack_failure(exc, "in the training process"))
    return answer


def _waiting_for(pipe: Connection) -> select.poll | None:
    """Return a poll object, which takes a timeout; None on Windows, where there is no heap to look after."""
    if not hasattr(select, "poll"):
        return None
    waiting = select.poll()
    waiting.register(pipe.fileno(), select.POLLIN)
    return waiting


def _receive(pipe: Connection, waiting: select.poll | None, heap: Heap) -> bytes | None:
    while waiting is not None and not waiting.poll(_IDLE_MS):
        heap.rested()
    try:
        return pipe.recv_bytes()
    except (EOFError, OSError):
        return None


def answer_to(request: Request, runner: Runner, codec: Codec, outbox: Outbox, number: int) -> Answer:
    """Run a task as worker `number`, and return the answer. The batch is then in the outbox."""
    where = f"in DataLoader worker process {number}"
    buffer = outbox.open(request.segment)
    result = runner.serve(request.task, number, buffer)
    if result.kind is ResultKind.DONE:
        try:
            header, buffer = _encode(codec, outbox, result.payload, buffer)
            batch_bytes = outbox.post(buffer, request.segment)
            began, fetch, collate, _, _ = result.task_times
            busy_ns = time.monotonic_ns() - began
            answer = Answer(ResultKind.DONE, header, batch_bytes, busy_ns, result.notes)
            answer.times, answer.task_notes = (began, fetch, collate, *runner.cpu.spent(busy_ns)), result.task_notes
            return answer
        except Exception as exc:
            answer = Answer(ResultKind.FAILED, pack_failure(exc, where))
    elif result.kind is ResultKind.FAILED:
        answer = Answer(ResultKind.FAILED, pack_failure(result.payload, where), notes=result.notes)
    else:
        answer = Answer(result.kind, notes=result.notes)
    outbox.discard()
    return answer


def _encode(codec: Codec, outbox: Outbox, batch: object, buffer: SlotWriter) -> tuple[bytes, SlotWriter]:
    """Write a batch, into a larger buffer if necessary; returns its header and the writer that holds it."""
    while True:
        try:
            return codec.encode(batch, buffer), buffer
        except SlotFull:
            buffer = outbox.open_larger(buffer)
