"""Simulated slots: they count their use, and detect a write to a batch that is still in use."""

from __future__ import annotations

import sys

from feedline.delivery.driver.slots import Slots
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.machine import DEEP
from feedline.frameworks.numpy import NumpyFramework
from feedline.simulation.scenario import LawBroken
from feedline.types import Result, SlotBatch


class CountedSlots(Slots):
    """Slots without memory.

    Args:
        count: number of slots; 0 if batches are sent in messages.
        slot_bytes: size of each slot.
        budget_bytes: maximum bytes in use at once; None for no limit.
    """

    def __init__(self, count: int, slot_bytes: int, budget_bytes: int | None) -> None:
        super().__init__(None, NumpyFramework(), Counters())
        self.count = count if budget_bytes is None else min(count, budget_bytes // slot_bytes)
        self.slot_bytes = slot_bytes
        self._free = list(range(self.count - 1, -1, -1))
        self.used: set[int] = set()
        """Slots that have an owner."""
        self.held: dict[int, object] = {}
        """Slots that the training loop holds, with the batches that must be in them."""
        self.memory: dict[int, object] = {}
        """What was last written to each slot."""
        self.most_used = 0
        self.without = 0
        """Tasks that got no slot because none was free."""

    def left(self, in_flight: int) -> int:
        return len(self._free) if self.count else sys.maxsize

    def acquire(self, worker: int) -> int:
        if not self._free:
            self.without += self.count > 0
            return -1
        slot = self._free.pop()
        self.used.add(slot)
        self.most_used = max(self.most_used, len(self.used))
        return slot

    def release(self, slot: int, used: int | None = None) -> None:
        if slot < 0:
            return
        if slot not in self.used:
            raise LawBroken(f"slot {slot} is released but has no owner")
        if slot in self.held:
            raise LawBroken(f"slot {slot} is released while the training loop holds it")
        self.used.remove(slot)
        self._free.append(slot)

    def discard(self, result: Result) -> None:
        if type(result.payload) is SlotBatch:
            slot, result.payload.slot = result.payload.slot, -1
            self.release(slot)

    def fit_messages(self) -> int:
        return 0 if self.count else 3 * DEEP

    def unpack(self, slot_batch: SlotBatch) -> tuple[object, int]:
        """Return a batch and its slot, which the training loop holds until it drops the batch; -1 for a message."""
        slot, slot_batch.slot = slot_batch.slot, -1
        if slot < 0:
            return slot_batch.header, -1
        batch = self.memory.get(slot)
        if slot not in self.used or batch is not slot_batch.header:
            raise LawBroken(f"slot {slot} was overwritten before its batch was delivered")
        self.held[slot] = batch
        return batch, slot

    def drop(self, slot: int) -> None:
        """Take back the slot of a batch that the training loop has dropped."""
        if self.memory[slot] is not self.held.pop(slot):
            raise LawBroken(f"slot {slot} was overwritten while the training loop held it")
        self.release(slot)

    def close(self) -> None:
        """Take back the slots that the training loop holds. No other slot may have an owner by now."""
        for slot in list(self.held):
            self.drop(slot)
        if self.used:
            raise LawBroken(f"slots {sorted(self.used)} still have owners when the loader is closed")
