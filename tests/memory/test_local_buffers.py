"""Warm memory for batches made in the training process."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from feedline.abc import memory
from feedline.memory.arena import Arena
from feedline.memory.codec import ALIGNMENT
from feedline.memory.local_buffers import LocalBuffers
from tests.memory.tasks import task_in

LARGE = 256 << 10


def make_arena(slot_count: int = 2, budget: int = 1 << 30) -> Arena:
    return Arena(slot_count, shared=False, budget=budget)


def test_small_arrays_come_from_the_ordinary_heap() -> None:
    arena = make_arena()
    assert LocalBuffers(lambda: arena).allocate(1000) is None
    assert arena.leased_count == 0
    assert sorted([arena.acquire(), arena.acquire()]) == [0, 1], "no slot was taken"


def test_the_arrays_of_a_batch_share_a_slot_until_the_last_is_dropped() -> None:
    arena = make_arena(1)
    buffer = LocalBuffers(lambda: arena)
    with task_in(buffer):
        first, second = (memory.empty((LARGE,), np.dtype(np.uint8)) for _ in range(2))
    buffer.close()
    buffer.close()
    first[:], second[:] = 1, 2
    assert (first == 1).all()
    assert (second == 2).all()
    addresses = [array.__array_interface__["data"][0] for array in (first, second)]
    assert all(address % ALIGNMENT == 0 for address in addresses)
    assert arena.leased_count == 1
    assert arena.resident_bytes >= 2 * LARGE
    del first
    assert arena.acquire() == -1
    del second
    assert arena.acquire() == 0


def test_arrays_that_do_not_fit_are_refused_and_smaller_ones_still_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.memory.sparse._LARGEST_MAPPING", 2 << 20)
    buffer = LocalBuffers(functools.partial(make_arena, 2))
    assert buffer.allocate(2 << 20) is None
    assert buffer.allocate(LARGE) is not None


def test_the_budget_limits_local_buffers_too() -> None:
    arena = make_arena(10, budget=3 * LARGE)
    kept = []
    buffer = LocalBuffers(lambda: arena)
    for _ in range(10):
        place = buffer.allocate(LARGE)
        buffer.close()
        if place is not None:
            kept.append(place)
    assert len(kept) == 3
    assert arena.resident_bytes <= 3 * LARGE
