"""The slots of a crew: what becomes of each, from the task that gets it to the training loop that has its batch.

A slot is acquired for a task. It is released when the task is answered without a batch, or nobody wants the batch any
more; otherwise it waits until the batch is unpacked. Then the small arrays of the batch are copied, and each large one
is either a view, whose part of the slot comes back when the array is dropped, or a copy.
"""

from __future__ import annotations

from typing import Any

from feedline.abc.framework import Framework
from feedline.loader.counters import Counters
from feedline.transport.arena import Arena
from feedline.transport.codec import Codec
from feedline.transport.reading import LARGE_BYTES, Copies
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
        if arena is not None:
            arena.serve(self)  # the loader may be dropped while somebody iterates
        self._owner = object()  # in the arena's books, which are not to refer to this object: no cycle

    def are_left(self) -> bool:
        """True while another task can be given what it needs."""
        return self._arena is None or self._arena.available()

    def acquire(self, worker: int) -> int:
        """Return a slot for a task of a worker; -1 if it has to do without."""
        return -1 if self._arena is None else self._arena.acquire(worker, self._owner)

    def release(self, slot: int, used: int | None = None) -> None:
        """Take back a slot in which nothing lies; `used` tells how far it was written, None if that is not known."""
        if self._arena is not None:
            self._arena.release(slot, used)

    def unpack(self, parcel: Parcel) -> Any:
        """Return the batch that lies in a slot. What it refers to stays its own from then on; the rest is free."""
        arena = self._arena
        slot, parcel.slot = parcel.slot, -1
        if parcel.overflow is not None:
            if arena is not None:
                self._counters.overflowed += 1
                arena.release(slot)
            return self._codec.decode(parcel.header, parcel.overflow)
        assert arena is not None
        try:
            reader = arena.reader(slot, parcel.used)
            self._counters.copied_out += type(reader) is Copies and parcel.used >= LARGE_BYTES
            return self._codec.decode(parcel.header, reader)
        finally:
            arena.finish(slot)

    def discard(self, result: Result) -> None:
        """Take back the slot of a batch nobody wants. May be called for what was unpacked, or has no slot."""
        if type(result.payload) is Parcel:
            slot, result.payload.slot = result.payload.slot, -1
            self.release(slot, result.payload.used)

    def close(self) -> None:
        """Take back all slots: no task is under way, and no epoch will ask for batches that came."""
        if self._arena is not None:
            self._arena.release_all(self._owner)
