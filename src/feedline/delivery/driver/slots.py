"""The slots of batches, from the task that gets a slot to the training loop that gets its batch.

A slot is acquired for a task, unless batches are small enough to come with a message. It is released when the task is
answered without a batch, or the batch is no longer wanted; otherwise it stays in use until the batch is unpacked. Then
the small arrays of the batch are copied. Each large one is either a copy or a view, whose part of the slot is freed
when the array is dropped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from feedline.abc.framework import Framework
from feedline.delivery.machine.counters import Counters
from feedline.memory.arena import Arena
from feedline.memory.codec import LARGE_BYTES, SMALL_BYTES, Codec
from feedline.types import Result, SlotBatch

_IN_MESSAGES = 96 << 10
"""Bytes that may wait for the training loop in messages of one worker: half of what a socket holds. With more, the
worker would wait as well.
"""

_SURE_AFTER = 4
_SURE_AGAIN_AFTER = 64
"""Number of small batches in a row after which the next one is expected to be small. The second number applies after a
large batch, because a batch that does not fit a message and has no slot must travel in memory of its own.
"""


class Slots:
    """Slots of tasks in flight, and of batches that the training loop does not have yet.

    Args:
        arena: where slots are cut from; None if batches come in memory of their own.
        framework: the array library.
        counters: counts batches that could not stay in place.
        depth: how many batches of one worker may wait for the training loop.
        capacity: returns how many tasks may be in flight without an arena.
    """

    def __init__(
        self,
        arena: Arena | None,
        framework: Framework,
        counters: Counters,
        *,
        depth: int = 1,
        capacity: Callable[[], int] = lambda: sys.maxsize,
    ) -> None:
        self._arena = arena
        self._framework = framework
        self._codec = Codec(framework)
        self.counters = counters
        if arena is not None:
            arena.serve(self)  # the loader may be dropped while its iterator is in use
        self._owner = object()  # the arena's bookkeeping must not refer to this object: no cycle
        self._small_bytes = min(SMALL_BYTES, _IN_MESSAGES // depth)
        self._small_count = 0
        """Small batches in a row."""
        self._largest = 0
        """Bytes of the largest of them."""
        self._sure_after = _SURE_AFTER
        self._capacity = capacity
        self._does_without = arena is None
        """True while tasks get no slots."""

    def left(self, in_flight: int) -> int:
        """Return how many more tasks can be assigned now."""
        if self._arena is None:
            return max(0, self._capacity() - in_flight)
        return sys.maxsize if self._does_without else self._arena.available()

    def acquire(self, worker: int) -> int:
        """Return a slot for a task of a worker; -1 if the task must do without."""
        return -1 if self._does_without or self._arena is None else self._arena.acquire(worker, self._owner)

    def fit_messages(self) -> int:
        """Return how many batches of one worker can wait for the training loop in messages; 0 if none come that way."""
        return _IN_MESSAGES // self._largest if self._does_without and self._largest else 0

    def release(self, slot: int, used: int | None = None) -> None:
        """Take back an empty slot; `used` is the number of bytes written, None if unknown."""
        if self._arena is not None:
            self._arena.release(slot, used)

    def _learn(self, used: int) -> None:
        """Decide from the size of a batch whether the next ones need slots."""
        if used > self._small_bytes:
            self._small_count, self._sure_after, self._does_without = 0, _SURE_AGAIN_AFTER, False
            self._largest = 0
        else:
            self._largest = max(used, self._largest)
            self._small_count += 1
            self._does_without = self._small_count >= self._sure_after

    def unpack(self, slot_batch: SlotBatch) -> Any:
        """Return the batch in a slot. It keeps the parts of the slot that it refers to; the rest is free."""
        arena = self._arena
        slot, slot_batch.slot = slot_batch.slot, -1
        if arena is not None and (slot_batch.used > self._largest or not self._does_without):
            self._learn(slot_batch.used)
        if slot_batch.reader is not None:
            self.counters.overflowed += arena is not None and slot_batch.used > SMALL_BYTES
            if slot >= 0:
                self.release(slot)
            return self._codec.decode(slot_batch.header, slot_batch.reader)
        if slot < 0:
            if slot_batch.batch is not None and self._framework.makes_usual_arrays():
                return slot_batch.batch
            return self._codec.decode_packed(slot_batch.header, slot_batch.used)
        assert arena is not None
        try:
            reader = arena.reader(slot, slot_batch.used)
            self.counters.copied_out += reader.copies and slot_batch.used >= LARGE_BYTES
            return self._codec.decode(slot_batch.header, reader)
        finally:
            arena.finish(slot)

    def unpack_ahead(self, results: list[Result]) -> None:
        """Unpack small batches that arrived together: in a row, each takes half the time that it takes alone."""
        if not self._framework.makes_usual_arrays():
            return
        for result in results:
            slot_batch = result.payload
            if type(slot_batch) is SlotBatch and slot_batch.slot < 0 and slot_batch.reader is None:
                slot_batch.batch = self._codec.decode_packed(slot_batch.header, slot_batch.used, ahead=True)
                if slot_batch.batch is None:
                    return

    def discard(self, result: Result) -> None:
        """Take back the slot of an unwanted batch. May be called if it was unpacked or has no slot."""
        if type(result.payload) is SlotBatch:
            slot, result.payload.slot = result.payload.slot, -1
            self.release(slot, result.payload.used)

    def close(self) -> None:
        """Take back all slots: no task is in flight, and no epoch will request the finished batches."""
        if self._arena is not None:
            self._arena.release_all(self._owner)
