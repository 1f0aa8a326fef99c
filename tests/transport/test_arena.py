"""Slots and who owns them."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feedline.errors import TooManyOpenFiles
from feedline.transport.arena import Arena, Bytes, starting_workers
from tests.faults.limits import descriptors_left

PAGE = os.sysconf("SC_PAGE_SIZE")


def make_arena(slot_count: int = 4, *, shared: bool = True, budget: int = 1 << 30) -> Arena:
    return Arena(slot_count, shared=shared, budget=budget)


def acquire_all(arena: Arena) -> list[int]:
    slots = []
    while (slot := arena.acquire()) >= 0:
        slots.append(slot)
    return slots


# -- acquire and release ---


@pytest.mark.parametrize("shared", [True, False])
def test_each_slot_is_given_out_once(shared: bool) -> None:
    arena = make_arena(5, shared=shared)
    assert sorted(acquire_all(arena)) == [0, 1, 2, 3, 4]
    assert not arena.available()
    arena.release(3)
    assert arena.available()
    assert acquire_all(arena) == [3]


def test_releasing_no_slot_is_nothing() -> None:
    arena = make_arena()
    arena.release(-1)
    assert sorted(acquire_all(arena)) == [0, 1, 2, 3]


def test_a_worker_gets_back_the_slot_it_wrote_last() -> None:
    arena = make_arena(8)
    slots = [arena.acquire(worker) for worker in range(4)]
    for slot in slots:
        arena.release(slot)
    for worker in (2, 0, 1):
        slot = arena.acquire(worker)
        assert slot == slots[worker]
        arena.release(slot)


def test_the_warmest_slot_is_used_first() -> None:
    arena = make_arena(8)
    first, second = arena.acquire(0), arena.acquire(0)
    arena.release(second)
    arena.release(first)
    assert arena.acquire(0) == first


@pytest.mark.parametrize("shared", [True, False])
def test_slots_do_not_overlap(shared: bool) -> None:
    arena = make_arena(3, shared=shared)
    for slot in range(3):
        view = arena.view(slot)
        assert view.nbytes == arena.slot_bytes
        view[:8] = slot + 1
        view[-8:] = slot + 1
    for slot in range(3):
        view = arena.view(slot)
        assert set(view[:8].tolist() + view[-8:].tolist()) == {slot + 1}
        assert view.__array_interface__["data"][0] == arena.address + slot * arena.slot_bytes


# -- leases ---


def test_a_slot_comes_back_when_its_last_view_dies() -> None:
    arena = make_arena(1)
    lease = arena.lease(arena.acquire(), 1000)
    part = lease[10:20].view(np.uint16)[1:]
    assert lease.nbytes == 1000
    del lease
    gc.collect()
    assert (arena.leased_count, arena.acquire()) == (1, -1)
    del part
    assert arena.leased_count == 0
    assert arena.acquire() == 0


def test_the_last_view_may_die_on_another_thread() -> None:
    arena = make_arena(1)
    views = [arena.lease(arena.acquire(), 100)]
    begin = threading.Event()

    def drop() -> None:
        begin.wait()
        views.clear()

    thread = threading.Thread(target=drop)
    thread.start()
    assert arena.acquire() == -1
    begin.set()
    thread.join()
    assert arena.acquire() == 0


def test_views_that_die_on_many_threads_lose_no_slot() -> None:
    arena = make_arena(64)
    barrier = threading.Barrier(4)

    def churn() -> None:
        barrier.wait()
        for _ in range(300):
            slot = arena.acquire()
            if slot >= 0:
                views = [arena.lease(slot, 8)[number:] for number in range(3)]
                views.clear()

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arena.leased_count == 0
    slots = acquire_all(arena)
    assert sorted(slots) == list(range(64)), "every slot once, none twice"


def test_a_view_in_a_reference_cycle_holds_its_slot_until_it_is_collected() -> None:
    arena = make_arena(1)
    cycle: list[Any] = [arena.lease(arena.acquire(), 8)]
    cycle.append(cycle)
    del cycle
    assert arena.acquire() == -1
    gc.collect()
    assert arena.acquire() == 0


def test_views_outlive_the_arena() -> None:
    arena = make_arena(2)
    lease = arena.lease(arena.acquire(), 4)
    lease[:] = (1, 2, 3, 4)
    arena.close()
    del arena
    gc.collect()
    assert lease.tolist() == [1, 2, 3, 4]
    lease[:] = 9
    assert lease.tolist() == [9, 9, 9, 9]


def test_a_lease_of_an_empty_batch_holds_its_slot_too() -> None:
    arena = make_arena(1)
    lease = arena.lease(arena.acquire(), 0)
    assert arena.acquire() == -1
    del lease
    assert arena.acquire() == 0


# -- the budget ---


def test_the_budget_is_respected_once_the_size_of_a_batch_is_known() -> None:
    arena = make_arena(100, budget=10 * PAGE)
    kept = []
    while (slot := arena.acquire()) >= 0:
        kept.append(arena.lease(slot, 3 * PAGE - 5))
        assert arena.touched_bytes <= arena.budget
    assert len(kept) == 3
    kept.pop()
    assert arena.available(), "a slot that exists costs nothing more"
    assert arena.acquire() == 2


def test_a_batch_larger_than_the_budget_still_has_one_slot() -> None:
    arena = make_arena(100, budget=0)
    first = arena.acquire()
    assert first == 0
    arena.note_use(first, 5 * PAGE)
    assert arena.acquire() == -1
    arena.release(first)
    assert arena.acquire() == first


def test_touched_bytes_are_the_furthest_that_was_written() -> None:
    arena = make_arena()
    slot = arena.acquire()
    for used, touched in ((1, PAGE), (PAGE + 1, 2 * PAGE), (5, 2 * PAGE)):
        arena.note_use(slot, used)
        assert arena.touched_bytes == touched
    assert f"touched_bytes={2 * PAGE}" in repr(arena)


# -- a device that follows the slots ---


def test_a_device_hears_of_growth_and_release_and_may_delay_reuse() -> None:
    arena = make_arena(3)
    events: list[tuple[Any, ...]] = []
    busy = {0}
    arena.watch(
        on_growth=lambda slot, size: events.append(("grown", slot, size)),
        on_release=lambda slot: events.append(("released", slot)),
        may_reuse=lambda slot: slot not in busy,
    )
    for used in (10, 20, PAGE + 1):
        lease = arena.lease(arena.acquire(), used)
        del lease
        busy.clear()
    assert events == [("grown", 0, PAGE), ("released", 0), ("released", 0), ("grown", 0, 2 * PAGE), ("released", 0)]
    busy.add(0)
    assert [arena.acquire(), arena.acquire(), arena.acquire()] == [1, 2, -1], "slot 0 waits for the device"
    busy.clear()
    assert arena.acquire() == 0


# -- forks ---


def in_a_fork(check: Any) -> int:
    """Run `check` in a fork of this process; returns 0 if it returned True."""
    child = os.fork()
    if child == 0:
        code = 2
        with contextlib.suppress(BaseException):
            code = 0 if check() else 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_slot_leased_during_a_fork_is_never_reused() -> None:
    arena = make_arena(3)
    lease = arena.lease(arena.acquire(), 100)
    lease[:] = 7
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(told, 1)  # the parent has dropped its view and written into every slot it could get
        os._exit(0 if set(lease.tolist()) == {7} else 1)
    try:
        assert arena.retired_count == 1
        del lease
        slots = acquire_all(arena)
        for slot in slots:
            arena.view(slot, 100)[:] = 9
        assert sorted(slots) == [1, 2]
    finally:
        os.write(tell, b".")
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(told)
        os.close(tell)
    assert code == 0, "the child saw its batch change"


def test_a_slot_that_was_not_leased_during_a_fork_stays_in_use() -> None:
    arena = make_arena(2)
    acquired = arena.acquire()
    lease = arena.lease(arena.acquire(), 8)
    del lease
    assert in_a_fork(lambda: True) == 0
    assert arena.retired_count == 0
    arena.release(acquired)
    assert sorted(acquire_all(arena)) == [0, 1]


def test_views_that_die_in_a_fork_do_not_change_the_books_of_anybody() -> None:
    arena = make_arena(2)
    holder = [arena.lease(arena.acquire(), 8)]

    def drop() -> bool:
        holder.clear()
        return arena.acquire() == 1 and arena.acquire() == -1

    assert in_a_fork(drop) == 0
    assert arena.leased_count == 1


def test_a_fork_keeps_the_descriptor_of_its_parent_open() -> None:
    arena = make_arena(2)

    def close() -> bool:
        arena.close()
        return arena.fd == -1

    assert in_a_fork(close) == 0
    assert os.fstat(arena.fd).st_size == 2 * arena.slot_bytes


def test_memory_of_this_process_alone_needs_no_retirement() -> None:
    arena = make_arena(2, shared=False)
    lease = arena.lease(arena.acquire(), 8)
    lease[:] = 1

    def overwrite() -> bool:
        lease[:] = 2
        return True

    assert in_a_fork(overwrite) == 0
    assert arena.retired_count == 0
    assert set(lease.tolist()) == {1}


def test_workers_of_feedline_do_not_retire_slots() -> None:
    arena = make_arena(2)
    lease = arena.lease(arena.acquire(), 8)
    with starting_workers():
        assert in_a_fork(lambda: True) == 0
    assert arena.retired_count == 0
    del lease
    assert sorted(acquire_all(arena)) == [0, 1]


# -- limits ---


@pytest.mark.parametrize("left", [0, 1])
def test_without_descriptors_the_error_names_the_limit(left: int) -> None:
    before = os.listdir("/proc/self/fd")
    with descriptors_left(left), pytest.raises(TooManyOpenFiles, match="ulimit -n"):
        make_arena()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_an_arena_takes_few_descriptors() -> None:
    before = len(os.listdir("/proc/self/fd"))
    arena = make_arena(1024)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    arena.close()
    arena.close()
    del arena
    assert len(os.listdir("/proc/self/fd")) == before


# -- the law: a slot has one owner ---


class OneOwner(RuleBasedStateMachine):
    """Any sequence of acquire, release, lease, view, drop and fork: each slot has one owner, and keeps its contents."""

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(6, shared=True, budget=20 * PAGE)
        self.held: set[int] = set()
        self.batches: dict[int, tuple[int, list[Bytes]]] = {}  # slot: what was written, views
        self.retired: set[int] = set()
        self.written = 0

    def _owners(self) -> set[int]:
        return self.held | set(self.batches) | self.retired

    @rule(worker=st.integers(-1, 2))
    def acquire(self, worker: int) -> None:
        slot = self.arena.acquire(worker)
        if slot < 0:
            assert not self.arena.available()
            return
        assert slot not in self._owners()
        self.held.add(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.held.remove(slot)
        self.arena.release(slot)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), size=st.integers(1, 3 * PAGE))
    def lease(self, data: st.DataObject, size: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.held)))
        self.held.remove(slot)
        self.written = self.written % 255 + 1
        self.arena.view(slot, size)[:] = self.written
        self.batches[slot] = self.written, [self.arena.lease(slot, size)]

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def make_a_view(self, data: st.DataObject) -> None:
        _, views = self.batches[data.draw(st.sampled_from(sorted(self.batches)))]
        place = data.draw(st.integers(0, len(views) - 1))  # a view that is drawn would be kept by Hypothesis
        views.append(views[place][len(views[place]) // 2 :])

    @precondition(lambda self: self.batches)
    @rule(data=st.data())
    def drop_a_view(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.batches)))
        _, views = self.batches[slot]
        views.pop(data.draw(st.integers(0, len(views) - 1)))
        if not views:
            del self.batches[slot]

    @rule()
    def fork(self) -> None:
        self.arena.retire_leased()  # what happens before a fork
        self.retired |= set(self.batches)

    @invariant()
    def batches_are_what_was_written(self) -> None:
        for written, views in self.batches.values():
            assert all((view == written).all() for view in views)

    @invariant()
    def the_books_are_right(self) -> None:
        assert self.arena.leased_count == len(self.batches)
        assert self.arena.retired_count == len(self.retired)

    def teardown(self) -> None:
        for slot in self.held:
            self.arena.release(slot)
        self.held.clear()
        self.batches.clear()
        slots = acquire_all(self.arena)
        assert len(slots) == len(set(slots))
        assert not set(slots) & self.retired


TestOneOwner = OneOwner.TestCase
TestOneOwner.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
