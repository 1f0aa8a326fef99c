"""The slots behind batches: each has one owner at a time and is released once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from feedline.delivery.driver.slots import Slots
from feedline.delivery.machine.counters import Counters
from feedline.frameworks.numpy import NumpyFramework
from feedline.frameworks.torch import TorchFramework
from feedline.memory.arena import Arena
from feedline.memory.codec import LARGE_BYTES, Codec, MessageWriter, Reader, SlotWriter
from feedline.types import Result, ResultKind, SlotBatch

CODEC = Codec(NumpyFramework())


class Bench:
    """Slots of an arena, into which batches are written as workers do."""

    def __init__(self, count: int = 4) -> None:
        self.arena = Arena(count, shared=True, budget=1 << 30)
        self.counters = Counters()
        self.slots = Slots(self.arena, NumpyFramework(), self.counters)

    def make(self, number: int, size: int = 1000, *, overflow: bool = False) -> SlotBatch:
        """Return a batch filled with a number, as a worker sends it."""
        slot = self.slots.acquire(0)
        overflow = overflow or slot < 0
        memory = np.zeros(1 << 16, np.uint8) if overflow else self.arena.view(slot, 1 << 16)
        writer = SlotWriter(memory)
        header = CODEC.encode([np.full(size, number, np.uint8)], writer)
        return SlotBatch(header, slot, writer.used, Reader(memory) if overflow else None)

    def batch(self, number: int, size: int = 1000, *, overflow: bool = False) -> Any:
        """Make and unpack a batch."""
        return self.slots.unpack(self.make(number, size, overflow=overflow))[0]

    def free_slots(self) -> int:
        slots = []
        while (slot := self.arena.acquire()) >= 0:
            slots.append(slot)
        assert len(slots) == len(set(slots)), "a slot was released twice"
        for slot in slots:
            self.arena.release(slot)
        return len(slots)


def test_a_batch_is_a_view_and_its_slot_is_released_with_it() -> None:
    bench = Bench()
    batch = bench.batch(7, size=LARGE_BYTES)
    assert batch.tolist() == [7] * LARGE_BYTES
    assert np.shares_memory(batch, bench.arena.view(0))
    assert bench.free_slots() == 3
    del batch
    assert bench.free_slots() == 4


def test_a_small_batch_is_a_copy_and_its_slot_is_free_at_once() -> None:
    bench = Bench()
    batch = bench.batch(7)
    assert batch.tolist() == [7] * 1000
    assert not np.shares_memory(batch, bench.arena.view(0))
    assert bench.free_slots() == 4


def test_kept_batches_are_copied_when_slots_run_short_and_never_overwritten() -> None:
    bench = Bench(3)
    kept = [bench.batch(number, size=LARGE_BYTES) for number in range(20)]
    assert [set(batch.tolist()) for batch in kept] == [{number} for number in range(20)]
    assert bench.counters.copied_out == 18, "one slot is always kept for the next task"
    assert bench.counters.overflowed == 0
    del kept
    assert bench.free_slots() == 3


def test_a_batch_in_its_own_memory_releases_its_slot_at_once() -> None:
    bench = Bench()
    batch = bench.batch(5, size=20_000, overflow=True)
    assert batch.tolist() == [5] * 20_000
    assert bench.counters.overflowed == 1
    assert bench.free_slots() == 4


def slots_given(bench: Bench, sizes: list[int]) -> list[bool]:
    """Make batches of these sizes; return whether each got a slot."""
    given = []
    for number, size in enumerate(sizes):
        slot_batch = bench.make(number, size)
        given.append(slot_batch.slot >= 0)
        assert bench.slots.unpack(slot_batch)[0].tolist() == [number] * size
    return given


def test_after_several_small_batches_tasks_get_no_slots() -> None:
    bench = Bench()
    assert slots_given(bench, [1000] * 8) == [True] * 4 + [False] * 4
    assert bench.free_slots() == 4


def test_after_a_large_batch_tasks_get_slots_for_a_long_time() -> None:
    bench = Bench()
    given = slots_given(bench, [1000] * 8 + [40_000] + [1000] * 70)
    assert given == [True] * 4 + [False] * 5 + [True] * 64 + [False] * 6
    assert bench.counters.overflowed == 1, "the large batch, which had no slot"


def test_batches_that_would_fill_the_socket_get_slots() -> None:
    slots = Slots(Arena(4, shared=True, budget=1 << 20), NumpyFramework(), Counters(), depth=100)
    for _ in range(10):
        slot = slots.acquire(0)
        assert slot >= 0, "a hundred batches of 2 kB would fill the socket"
        memory = np.zeros(2000, np.uint8)
        writer = SlotWriter(memory)
        header = CODEC.encode([np.zeros(2000, np.uint8)], writer)
        slots.unpack(SlotBatch(header, slot, writer.used, Reader(memory)))


def test_the_slot_of_a_discarded_batch_is_released_once() -> None:
    bench = Bench()
    result = Result(ResultKind.DONE, 0, 1, bench.make(0))
    bench.slots.discard(result)
    bench.slots.discard(result)
    bench.slots.close()
    assert bench.free_slots() == 4


def small_parcel(codec: Codec, number: int) -> SlotBatch:
    memory = np.zeros(1 << 10, np.uint8)
    writer = MessageWriter(memory)
    header = codec.encode([torch.full((3,), number)], writer)
    return SlotBatch(header + writer.contents(), -1, writer.used)


def small_results() -> tuple[Slots, list[Result]]:
    framework = TorchFramework()
    slots, codec = Slots(None, framework, Counters()), Codec(framework)
    for number in range(2):
        slots.unpack(small_parcel(codec, number))  # so that the batches look alike
    return slots, [Result(ResultKind.DONE, 0, number, small_parcel(codec, number)) for number in range(4)]


def test_small_batches_that_arrive_together_are_unpacked_ahead_and_correctly() -> None:
    slots, results = small_results()
    slot_batches = [result.payload for result in results]
    slots.unpack_ahead([results[0], Result(ResultKind.FAILED, 0, 9, ValueError()), *results[1:]])
    assert all(slot_batch.batch is not None for slot_batch in slot_batches)
    assert [slots.unpack(one)[0].tolist() for one in slot_batches] == [[number] * 3 for number in range(4)]
