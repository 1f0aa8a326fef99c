"""The slots of batches: what becomes of each, from the task that gets it to the training loop that has its batch.

A slot is acquired for a task, unless batches are so small that they come with a message. It is released when the task
is answered without a batch, or nobody wants the batch any more; otherwise it waits until the batch is unpacked. Then
the small arrays of the batch are copied, and each large one is either a view, whose part of the slot comes back when
the array is dropped, or a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from feedline.abc.framework import Framework
from feedline.delivery.machine.counters import Counters
from feedline.memory.arena import Arena
from feedline.memory.codec import Codec
from feedline.memory.reading import LARGE_BYTES, SMALL_BYTES, Copies
from feedline.types import Parcel, Result

_IN_MESSAGES = 96 << 10
"""Bytes that may wait for the training loop in messages of one worker: half of what a socket holds. With more, the
worker would wait as well."""

_SURE_AFTER = 4
_SURE_AGAIN_AFTER = 64
"""So many small batches in a row, and the next one is expected to be small. After a large one it takes longer: what
does not fit a message and has no slot has to travel in memory of its own."""


class Slots:
    """Slots for tasks that are under way, and those of batches that the training loop does not have yet.

    Args:
        arena: what they are cut from; None if batches come in memory of their own.
        framework: the array library.
        counters: told about batches that could not stay where they were.
        depth: how many batches of one worker may wait for the training loop.
        has_room: True if there is room for another batch in memory of the engine's own.
    """

    def __init__(
        self,
        arena: Arena | None,
        framework: Framework,
        counters: Counters,
        *,
        depth: int = 1,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._arena = arena
        self._framework = framework
        self._codec = Codec(framework)
        self.counters = counters
        if arena is not None:
            arena.serve(self)  # the loader may be dropped while somebody iterates
        self._owner = object()  # in the arena's books, which are not to refer to this object: no cycle
        self._small_bytes = min(SMALL_BYTES, _IN_MESSAGES // depth)
        self._small_count = 0
        """Batches in a row that were small."""
        self._largest = 0
        """Bytes of the largest of them."""
        self._sure_after = _SURE_AFTER
        self._has_room = has_room
        self._does_without = arena is None
        """True while tasks are given no slots."""

    def are_left(self) -> bool:
        """True while another task can be given what it needs."""
        if self._arena is None:
            return self._has_room()
        return self._does_without or self._arena.available()

    def acquire(self, worker: int) -> int:
        """Return a slot for a task of a worker; -1 if it has to do without."""
        return -1 if self._does_without or self._arena is None else self._arena.acquire(worker, self._owner)

    def fit_messages(self) -> int:
        """Return how many batches of one worker can wait for the training loop in messages; 0 if none comes so."""
        return _IN_MESSAGES // self._largest if self._does_without and self._largest else 0

    def release(self, slot: int, used: int | None = None) -> None:
        """Take back a slot in which nothing lies; `used` tells how far it was written, None if that is not known."""
        if self._arena is not None:
            self._arena.release(slot, used)

    def _learn(self, used: int) -> None:
        """Find out from the size of a batch whether the next ones need slots."""
        if used > self._small_bytes:
            self._small_count, self._sure_after, self._does_without = 0, _SURE_AGAIN_AFTER, False
            self._largest = 0
        else:
            self._largest = max(used, self._largest)
            self._small_count += 1
            self._does_without = self._small_count >= self._sure_after

    def unpack(self, parcel: Parcel) -> Any:
        """Return the batch that lies in a slot. What it refers to stays its own from then on; the rest is free."""
        arena = self._arena
        slot, parcel.slot = parcel.slot, -1
        if arena is not None and (parcel.used > self._largest or not self._does_without):
            self._learn(parcel.used)
        if parcel.reader is not None:
            self.counters.overflowed += arena is not None and parcel.used > SMALL_BYTES
            if slot >= 0:
                self.release(slot)
            return self._codec.decode(parcel.header, parcel.reader)
        if slot < 0:
            if parcel.batch is not None and self._framework.makes_usual_arrays():
                return parcel.batch
            return self._codec.decode_packed(parcel.header, parcel.used)
        assert arena is not None
        try:
            reader = arena.reader(slot, parcel.used)
            self.counters.copied_out += type(reader) is Copies and parcel.used >= LARGE_BYTES
            return self._codec.decode(parcel.header, reader)
        finally:
            arena.finish(slot)

    def unpack_ahead(self, results: list[Result]) -> None:
        """Unpack small batches that came at once: in a row, each takes half the time that it takes alone."""
        if not self._framework.makes_usual_arrays():
            return
        for result in results:
            parcel = result.payload
            if type(parcel) is Parcel and parcel.slot < 0 and parcel.reader is None:
                parcel.batch = self._codec.decode_packed(parcel.header, parcel.used, ahead=True)
                if parcel.batch is None:
                    return

    def discard(self, result: Result) -> None:
        """Take back the slot of a batch nobody wants. May be called for what was unpacked, or has no slot."""
        if type(result.payload) is Parcel:
            slot, result.payload.slot = result.payload.slot, -1
            self.release(slot, result.payload.used)

    def close(self) -> None:
        """Take back all slots: no task is under way, and no epoch will ask for batches that came."""
        if self._arena is not None:
            self._arena.release_all(self._owner)
