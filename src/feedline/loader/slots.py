"""The slots of a crew: what becomes of each, from the task that gets it to the training loop that has its batch.

A slot is acquired for a task. It is released when the task is answered without a batch, or nobody wants the batch any
more; otherwise it is held until the batch is unpacked. Then the batch is either a view of the slot, which comes back
when the batch is dropped (a lease), or a copy.
"""

from __future__ import annotations

from typing import Any

from feedline.abc.framework import Framework
from feedline.loader.counters import Counters
from feedline.transport.arena import Arena
from feedline.transport.codec import Codec
from feedline.types import Parcel, Result


class Slots:
    """Slots for tasks that are under way, and those of batches that the training loop does not have yet.

    Args:
        arena: what they are cut from; None if batches come in memory of their own.
        framework: the array library.
        counters: told about batches that could not stay where they were.
    """

    def __init__(self, arena: Arena | None, framework: Framework, counters: Counters) -> None:
        self._arena = arena
        self._codec = Codec(framework)
        self._counters = counters
        self._unread: set[int] = set()
        """Slots of batches that an epoch has and the training loop does not have yet."""

    def are_left(self) -> bool:
        """True while another task can be given what it needs."""
        return self._arena is None or self._arena.available()

    def acquire(self, worker: int) -> int:
        """Return a slot for a task of a worker; -1 if it has to do without."""
        return -1 if self._arena is None else self._arena.acquire(worker)

    def release(self, slot: int) -> None:
        """Take back a slot in which nothing lies."""
        if self._arena is not None:
            self._arena.release(slot)

    def hold(self, parcel: Parcel) -> None:
        """Keep the slot of a batch that came, until it is unpacked or discarded."""
        self._unread.add(parcel.slot)

    def unpack(self, parcel: Parcel) -> Any:
        """Return the batch that lies in a slot. It owns the slot from then on, or is a copy."""
        arena = self._arena
        if parcel.overflow is not None:
            if arena is not None:
                self._counters.overflowed += 1
                arena.release(parcel.slot)
            self._unread.discard(parcel.slot)
            return self._codec.decode(parcel.header, parcel.overflow)
        assert arena is not None
        if arena.available():
            lease = arena.lease(parcel.slot, parcel.used)
            self._unread.discard(parcel.slot)
            return self._codec.decode(parcel.header, lease)
        # The training loop keeps so many batches that this slot is needed for the next task.
        self._counters.copied_out += 1
        arena.note_use(parcel.slot, parcel.used)
        memory = arena.view(parcel.slot, max(parcel.used, 1)).copy()
        self._unread.discard(parcel.slot)
        arena.release(parcel.slot)
        return self._codec.decode(parcel.header, memory)

    def discard(self, result: Result) -> None:
        """Take back the slot of a batch nobody wants. May be called for what was unpacked, or has no slot."""
        if type(result.payload) is Parcel and result.payload.slot in self._unread:
            self._unread.remove(result.payload.slot)
            self.release(result.payload.slot)

    def close(self) -> None:
        """Take back the slots of all batches that came: no epoch will ask for them."""
        for slot in self._unread:
            self.release(slot)
        self._unread.clear()
