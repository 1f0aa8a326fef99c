"""The training process's side: turns a worker's messages about a task into its result."""

from __future__ import annotations

import errno
import mmap
import os
import pickle

import numpy as np

from feedline.errors import TooManyOpenFiles
from feedline.memory.reading import Copies
from feedline.types import Notes, Result, ResultKind, SlotBatch, TaskNotes
from feedline.workers.failure import unpack_failure
from feedline.workers.processes.messages import Kind, Message

_WITHOUT_BATCH = {
    Kind.ENDED: ResultKind.ENDED,
    Kind.EMPTY: ResultKind.EMPTY,
    Kind.FAILED: ResultKind.FAILED,
}


class Answers:
    """What is known about tasks that workers have, until their answers arrive."""

    def __init__(self) -> None:
        self.slots: dict[int, int] = {}
        """By task: the slot that its batch is written into."""
        self._notes: dict[int, tuple[Notes | None, TaskNotes | None]] = {}
        """By task: what its worker has sent ahead of the batch."""

    def keep_notes(self, message: Message) -> None:
        """Keep the notes on a task until its batch arrives."""
        self._notes[message.task_id] = pickle.loads(message.body)

    def result(self, worker: int, message: Message) -> Result:
        """Return the result of a task; called once for each batch."""
        slot = self.slots.pop(message.task_id, -1) if self.slots else -1
        if message.kind is Kind.DONE:
            try:
                reader = _overflow_of(message) if message.fd >= 0 else None
            except OSError as exc:
                return Result(ResultKind.FAILED, worker, message.task_id, exc)
            slot_batch = SlotBatch(message.body, slot, message.used, reader)
            notes, task_notes = self._notes.pop(message.task_id, (None, None)) if self._notes else (None, None)
            return Result(
                ResultKind.DONE,
                worker,
                message.task_id,
                slot_batch,
                message.busy_ns,
                notes,
                times=message.times,
                task_notes=task_notes,
            )
        notes, _ = self._notes.pop(message.task_id, (None, None))
        kind = _WITHOUT_BATCH[message.kind]
        payload = unpack_failure(message.body) if kind is ResultKind.FAILED else None
        return Result(kind, worker, message.task_id, payload, notes=notes)


def _overflow_of(message: Message) -> Copies:
    """Return the memory of a batch that found no slot.

    It is copied, because a mapping holds a descriptor, and a program may keep thousands of batches.
    """
    try:
        return Copies(np.frombuffer(mmap.mmap(message.fd, max(message.used, 1), prot=mmap.PROT_READ), np.uint8))
    except OSError as exc:
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            raise TooManyOpenFiles("taking over the memory of a batch") from exc
        raise
    finally:
        os.close(message.fd)
