"""Messages between the training process and a worker: their kinds, and how they become bytes.

A message is sent whole. On Linux it is one packet of a socket (`link.py`), elsewhere one item of a pipe. A small
batch without a slot travels in the message itself. Short tasks may travel several to a message: each is a message of
its own, with its length in the field where answers have their time.
"""

from __future__ import annotations

import pickle
import struct
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from feedline.memory.codec import Reader
from feedline.types import NO_TIMES, TIMES, Draw, IndexBlock, Notes, Result, ResultKind, SlotBatch, Task, TaskNotes
from feedline.workers.failure import unpack_failure

PACKET_BYTES = 48 << 10
"""The longest body sent in a packet. Linux allows at least 200 KB per socket by default, for all waiting packets."""

_NO_TIMES = TIMES.pack(*NO_TIMES)
HEAD = struct.Struct(f"<BBQQQ{TIMES.size}s")


class Kind(IntEnum):
    """The kind of a message."""

    TASK = 1
    DONE = 2
    FAILED = 3
    ENDED = 4
    NOTES = 5
    """What the worker reports besides the batch, which follows."""
    UNREADY = 6
    """The worker could not get ready, and exits."""
    ALIVE = 7
    """The worker got through its start, where nothing inherited by fork has blocked it; or it is reading the samples
    before its task, in a stream that it resumes."""
    READY = 8
    """The worker is ready to work."""
    EMPTY = 9
    """All samples of a batch were left out."""


ANSWERS = (Kind.DONE, Kind.FAILED, Kind.ENDED, Kind.EMPTY)
"""The kinds that answer a task."""

_KINDS = {int(kind): kind for kind in Kind}
_RESULTS = {Kind.ENDED: ResultKind.ENDED, Kind.EMPTY: ResultKind.EMPTY, Kind.FAILED: ResultKind.FAILED}


@dataclass(slots=True)
class Message:
    """One message."""

    kind: Kind
    task_id: int
    body: bytes
    used: int = 0
    """DONE: size of the batch in bytes: in the slot, in memory of its own, or else at the end of the body."""
    busy_ns: int = 0
    """DONE: how long the worker took. TASK: the length of the body; more tasks may follow behind it."""
    fd: int = -1
    """DONE: a descriptor of the memory that holds the batch instead of the slot."""
    times: bytes = _NO_TIMES
    """DONE: as in `Result`."""
    mark: int = 0
    """Says where the rest of a message is; each transport has its own marks."""


def packed(message: Message) -> bytes:
    """Return a message as bytes. A descriptor is not part of them."""
    head = HEAD.pack(message.kind, message.mark, message.task_id, message.used, message.busy_ns, message.times)
    return head + message.body


def unpacked(data: bytes) -> Message:
    """Return the message in these bytes."""
    kind, mark, task_id, used, busy_ns, times = HEAD.unpack_from(data)
    return Message(_KINDS[kind], task_id, data[HEAD.size :], used, busy_ns, -1, times, mark)


def result_of(
    worker: int, message: Message, notes: bytes | None, slot: int = -1, reader: Reader | None = None
) -> Result:
    """Convert a worker's answer to the result of its task.

    Args:
        worker: its number.
        message: the answer.
        notes: the body of the notes that it sent ahead of the answer.
        slot: the slot of the batch.
        reader: reads a batch that has memory of its own.
    """
    of_batch: Notes | None
    of_task: TaskNotes | None
    of_batch, of_task = None, None
    try:
        if notes is not None:
            of_batch, of_task = pickle.loads(notes)
    except Exception as exc:  # raised while a user's state was unpickled
        return Result(ResultKind.FAILED, worker, message.task_id, exc)
    if message.kind is not Kind.DONE:
        payload = unpack_failure(message.body) if message.kind is Kind.FAILED else None
        return Result(_RESULTS[message.kind], worker, message.task_id, payload, notes=of_batch)
    batch = SlotBatch(message.body, slot, message.used, reader)
    return Result(
        ResultKind.DONE,
        worker,
        message.task_id,
        batch,
        message.busy_ns,
        of_batch,
        times=message.times,
        task_notes=of_task,
    )


_BLOCK_HEAD = struct.Struct("<BqQqq")
"""A task whose indices are an `IndexBlock`: a mark, the epoch and the draw; the indices follow. Any other task is
pickled."""


def task_message(task: Task) -> Message:
    """Put a task into a message."""
    indices, draw = task.indices, task.draw
    special = task.shared_seed is not None or task.resume is not None or task.snapshot or bool(task.skip)
    if type(indices) is IndexBlock and not special:
        body = _BLOCK_HEAD.pack(1, task.epoch, draw.key, draw.first, draw.stride) + indices.array.tobytes()
    else:
        numbers = (draw.key, draw.first, draw.stride)
        rest = (task.resume, task.snapshot, task.skip)
        body = b"\0" + pickle.dumps((indices, task.epoch, task.shared_seed, numbers, *rest), 5)
    return Message(Kind.TASK, task.id, body, task.slot + 1, len(body))


def joined(messages: list[Message]) -> Message | None:
    """Join messages of tasks into one, which `apart` splits again; None if that would be too long for a packet."""
    first = messages[0]
    parts = [first.body]
    for message in messages[1:]:
        parts.append(HEAD.pack(message.kind, 0, message.task_id, message.used, message.busy_ns, _NO_TIMES))
        parts.append(message.body)
    body = b"".join(parts)
    return None if len(body) > PACKET_BYTES else Message(Kind.TASK, first.task_id, body, first.used, first.busy_ns)


def apart(message: Message) -> list[Message]:
    """Split a message from a packet into messages of single tasks."""
    body, end = message.body, message.busy_ns
    if end == len(body) or message.kind is not Kind.TASK:
        return [message]
    messages = [Message(Kind.TASK, message.task_id, body[:end], message.used, end)]
    while end < len(body):
        _, _, task_id, used, size, _ = HEAD.unpack_from(body, end)
        start = end + HEAD.size
        end = start + size
        messages.append(Message(Kind.TASK, task_id, body[start:end], used, size))
    return messages


def read_task(message: Message) -> Task:
    """Take a task out of a message."""
    body = message.body
    slot = message.used - 1
    if body[0] == 1:
        _, epoch, key, first, stride = _BLOCK_HEAD.unpack_from(body)
        indices = np.frombuffer(bytearray(body), np.int64, offset=_BLOCK_HEAD.size)  # writable, as torch requires
        return Task(message.task_id, IndexBlock(indices), slot, epoch, draw=Draw(key, first, stride))
    indices, epoch, shared_seed, numbers, *rest = pickle.loads(memoryview(body)[1:])
    return Task(message.task_id, indices, slot, epoch, shared_seed, Draw(*numbers), *rest)
