"""Slots and their owners."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feedline.errors import TooManyOpenFiles
from feedline.memory.arena import Arena
from feedline.memory.codec import Bytes
from feedline.memory.slot_table import SLACK_BYTES, Device, Usage
from tests.faults.limits import descriptors_left
from tests.sampling import examples

PAGE = os.sysconf("SC_PAGE_SIZE")


def make_arena(slot_count: int = 4, *, shared: bool = True, budget: int = 1 << 30, **more: int) -> Arena:
    return Arena(slot_count, shared=shared, budget=budget, **more)


def leased(arena: Arena, size: int) -> Bytes:
    """Make and read a batch of one array."""
    slot = arena.acquire()
    arena.note_use(slot, size)
    lease = arena.lease(slot, 0, size)
    arena.finish(slot)
    return lease


def acquire_all(arena: Arena) -> list[int]:
    slots = []
    while (slot := arena.acquire()) >= 0:
        slots.append(slot)
    return slots


def test_a_worker_gets_back_the_slot_it_wrote_last() -> None:
    arena = make_arena(8)
    slots = [arena.acquire(worker) for worker in range(4)]
    for slot in slots:
        arena.release(slot, PAGE)
    for worker in (2, 0, 1):
        slot = arena.acquire(worker)
        assert slot == slots[worker]
        arena.release(slot, PAGE)


# -- leases ---


@pytest.mark.parametrize("act", [Arena.acquire, lambda arena: arena.release(0)])
def test_a_signal_never_leaves_the_lock_taken(act: Any) -> None:
    """One comes whenever a method of the lock returns. `with` handles none before its block is entered."""
    lock = threading.Lock()

    class Signalled:
        __enter__, __exit__ = lock.__enter__, lock.__exit__

        def __getattr__(self, name: str) -> Any:
            getattr(lock, name)()
            raise KeyboardInterrupt

    arena = make_arena()
    arena.acquire()
    arena._lock = Signalled()  # type: ignore[assignment]
    with contextlib.suppress(KeyboardInterrupt):
        act(arena)
    arena._lock = lock
    assert not lock.locked()


def test_dropping_views_on_many_threads_loses_no_slot() -> None:
    arena = make_arena(64, before_known=64)
    barrier = threading.Barrier(4)

    def churn() -> None:
        barrier.wait()
        for number in range(300):
            slot = arena.acquire()
            if slot >= 0:
                views = [arena.lease(slot, part * PAGE, 8)[1:] for part in range(3)]
                if number % 2:
                    views.clear()
                arena.finish(slot)
                views.clear()

    threads = [threading.Thread(target=churn) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert arena.leased_count == 0
    slots = acquire_all(arena)
    assert sorted(slots) == list(range(64)), "every slot exactly once"


def test_dropping_an_array_runs_no_python_code_in_which_an_interrupt_could_be_lost() -> None:
    arena = make_arena(1)
    lease = leased(arena, 8)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del lease
    finally:
        sys.setprofile(None)
    assert calls == []
    assert arena.acquire() == 0


class User:
    """An owner of an arena, in a reference cycle."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.itself = self
        arena.serve(self)


def test_an_arena_is_closed_when_the_garbage_collector_frees_its_last_user() -> None:
    arena = make_arena(8)
    users = [User(arena), User(arena)]
    kept = [filled(arena, 1 << 20, 4 << 20) for _ in range(3)]
    fd = os.dup(arena.fd)
    del arena
    users.pop()
    gc.collect()
    assert users[0].arena.available()
    users.pop()
    gc.collect()
    try:
        assert os.fstat(fd).st_blocks * 512 == 15 << 20, "the held memory"
        for parts in kept:
            del parts[1]
        assert os.fstat(fd).st_blocks * 512 == 3 << 20, "the memory that is still held"
        assert all((part == 1).all() for parts in kept for part in parts)
        del parts
        kept.clear()
        assert os.fstat(fd).st_blocks == 0
    finally:
        os.close(fd)


def test_ctrl_c_while_an_arena_is_closed_with_its_last_user_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python drops exceptions that are raised in finalizers."""
    closed, rest = [], Arena.rest

    def interrupted(arena: Arena) -> None:
        signal.raise_signal(signal.SIGINT)
        rest(arena)
        closed.append(True)

    monkeypatch.setattr(Arena, "rest", interrupted)

    def drop() -> None:
        user = User(make_arena(2))
        user.itself = user.arena = None  # type: ignore[assignment]
        del user
        while True:  # Ctrl-C is raised between two instructions
            threading.Event().wait(0.01)

    with pytest.raises(KeyboardInterrupt):
        drop()
    assert closed


def test_code_run_by_the_garbage_collector_during_an_operation_does_not_deadlock() -> None:
    arena = make_arena(8)
    busy = arena.acquire()
    kept = filled(arena, 1 << 20)
    with arena._lock:  # as inside any operation
        arena.release(busy, 0)
        arena.release_all(object())
        kept.clear()
        assert arena.leased_count == 1
        assert isinstance(arena.resident_bytes, int)
    arena._holder = threading.get_ident()
    with arena._lock:
        assert arena.acquire() == -1
    arena._holder = 0
    assert arena.leased_count == 0
    assert arena.acquire() in (0, 1), "the next caller performs the pending release"


@pytest.mark.parametrize("line", range(12))
def test_an_interrupt_while_a_dropped_lease_is_recorded_loses_no_slot(line: int) -> None:
    arena = make_arena(2)
    kept = filled(arena, 1 << 20, 1 << 20)
    kept.clear()
    seen = 0

    def interrupt(frame: Any, event: str, _: Any) -> Any:
        nonlocal seen
        if event == "line" and frame.f_code.co_name in ("part_dropped", "_free", "_recount"):
            seen += 1
            if seen == line + 1:
                raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            arena.available()
    finally:
        sys.settrace(None)
    assert arena.leased_count == 0
    assert sorted(acquire_all(arena)) == [0, 1]
    assert arena._table.live == 0


@pytest.mark.parametrize("closed", [True, False])
def test_views_outlive_the_arena(closed: bool) -> None:
    arena = make_arena(2)
    lease = leased(arena, 4)
    lease[:] = (1, 2, 3, 4)
    if closed:
        arena.close()
    del arena
    gc.collect()
    assert lease.tolist() == [1, 2, 3, 4]
    lease[:] = 9
    assert lease.tolist() == [9, 9, 9, 9]


# -- resident memory ---


def resident(arena: Arena) -> int:
    """Return the bytes of memory that the kernel has allocated for an arena."""
    return os.fstat(arena.fd).st_blocks * 512


def filled(arena: Arena, *sizes: int, worker: int = 0) -> list[Bytes]:
    """Make and read a batch with parts of these sizes; every part starts at a page."""
    slot = arena.acquire(worker)
    assert slot >= 0
    start, places = 0, []
    for size in sizes:
        places.append((start, size))
        start += -(-size // PAGE) * PAGE
    arena.view(slot, start)[:] = 1
    arena.note_use(slot, start)
    parts = [arena.lease(slot, *place) for place in places]
    arena.finish(slot)
    return parts


def test_while_nothing_runs_dropped_memory_is_returned_at_once() -> None:
    arena = make_arena(64)
    kept = [filled(arena, 4 << 20) for _ in range(20)]
    arena.rest()
    kept.clear()  # no call to the arena follows
    assert resident(arena) <= SLACK_BYTES + 4 * (4 << 20)


def deliver(usage: Usage, *sizes: int) -> None:
    for size in sizes:
        usage.note(size)
        usage.end()


def test_the_largest_of_recent_batches_is_expected_and_forgotten_after_two_spans() -> None:
    usage = Usage(4)
    deliver(usage, 100, 5000, *[100] * 14)
    assert (usage.expected_bytes, usage.spare_bytes(0)) == (5000, 6 * 5000)
    deliver(usage, *[100] * 15)
    assert usage.expected_bytes == 5000, "the previous span counts too"
    deliver(usage, 100, 200)
    assert (usage.expected_bytes, usage.spare_bytes(0)) == (200, 6 * 200)


# -- the budget ---


def test_the_budget_is_respected_once_the_size_of_a_batch_is_known() -> None:
    arena = make_arena(100, budget=10 * PAGE)
    kept = []
    while (slot := arena.acquire()) >= 0:
        arena.note_use(slot, 3 * PAGE - 5)
        kept.append(arena.lease(slot, 0, 3 * PAGE - 5))
        arena.finish(slot)
        assert arena.resident_bytes <= arena.budget
    assert len(kept) == 3
    kept.pop()
    assert arena.available(), "an existing slot needs no more memory"
    assert arena.acquire() == 2


def test_a_batch_larger_than_the_budget_still_has_one_slot() -> None:
    arena = make_arena(100, budget=0)
    first = arena.acquire()
    assert first == 0
    arena.note_use(first, 5 * PAGE)
    assert arena.acquire() == -1
    arena.release(first, 5 * PAGE)
    assert arena.acquire() == first


# -- a device that follows the slots ---


class Follower(Device):
    def __init__(self) -> None:
        self.events: list[tuple[Any, ...]] = []
        self.busy: set[int] = set()

    def on_growth(self, slot: int, size: int) -> None:
        self.events.append(("grown", slot, size))

    def on_release(self, slot: int) -> None:
        self.events.append(("released", slot))

    def may_reuse(self, slot: int) -> bool:
        return slot not in self.busy

    def shrink(self, slot: int) -> bool:
        self.events.append(("shrunk", slot))
        return slot not in self.busy


def test_a_device_is_notified_of_growth_and_release_and_may_delay_reuse() -> None:
    arena = make_arena(3)
    device = Follower()
    arena.follow(device)
    device.busy = {0}
    for used in (10, 20, PAGE + 1):
        lease = leased(arena, used)
        del lease
        assert arena.leased_count == 0  # which records the drop
        device.busy.clear()
    grown = [("grown", 0, PAGE), ("released", 0), ("released", 0), ("grown", 0, 2 * PAGE), ("released", 0)]
    assert device.events == grown
    lease = leased(arena, 10)
    device.busy.add(0)
    del lease
    assert [arena.acquire(), arena.acquire(), arena.acquire()] == [1, 2, -1], "slot 0 waits for the device"
    device.busy.clear()
    assert arena.acquire() == 0


# -- forks ---


def in_a_fork(check: Any) -> int:
    """Run `check` in a fork of this process; return 0 if it returned True."""
    child = os.fork()
    if child == 0:
        code = 2
        with contextlib.suppress(BaseException):
            code = 0 if check() else 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_fork_frees_nothing_of_its_parents_memory() -> None:
    arena = make_arena(4)
    busy, owner = arena.acquire(owner="crew"), "crew"
    arena.view(busy, 1 << 20)[:] = 5
    holder = [filled(arena, 1 << 20, 1 << 20)]

    def give_back() -> bool:
        arena.release(busy)
        arena.release_all(owner)
        holder.clear()
        arena.rest()
        arena.close()
        return True

    assert in_a_fork(give_back) == 0
    assert (arena.view(busy, 1 << 20) == 5).all()
    assert all((part == 1).all() for part in holder[0])


# -- limits ---


@pytest.mark.parametrize("left", [0, 1])
def test_without_descriptors_the_error_names_the_limit(left: int) -> None:
    before = os.listdir("/proc/self/fd")
    with descriptors_left(left), pytest.raises(TooManyOpenFiles, match="ulimit -n"):
        make_arena()
    assert len(os.listdir("/proc/self/fd")) == len(before)


# -- the law: a slot has one owner, and resident memory is what is held plus a window ---


class OneOwner(RuleBasedStateMachine):
    """Any sequence of acquire, release, lease, view, drop, fork and rest.

    Each slot has one owner and keeps its contents, and no more is resident than what is held plus one window.
    """

    window = 2
    part_bytes = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.arena = Arena(40, shared=True, budget=200 << 20, window=self.window)
        self.busy: set[int] = set()
        self.parts: list[tuple[int, int, int, list[Bytes]]] = []  # slot, what was written, bytes, views
        self.seen: list[Bytes] = []  # by a living child
        self.written = 0
        self.largest = 0

    @rule(worker=st.integers(-1, 2))
    def acquire(self, worker: int) -> None:
        slot = self.arena.acquire(worker)
        if slot < 0:
            assert not self.arena.available()
            return
        assert slot not in self.busy
        assert slot not in {part[0] for part in self.parts}
        self.busy.add(slot)

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), used=st.sampled_from([0, None]))
    def release(self, data: st.DataObject, used: int | None) -> None:
        slot = data.draw(st.sampled_from(sorted(self.busy)))
        self.busy.remove(slot)
        self.arena.release(slot, used)

    @rule()
    def release_all(self) -> None:
        self.arena.release_all(True)  # the default owner
        self.busy.clear()

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def deliver(self, data: st.DataObject, sizes: list[int]) -> None:
        slot = data.draw(st.sampled_from(sorted(self.busy)))
        self.busy.remove(slot)
        self.written = self.written % 255 + 1
        used = sum(sizes) * self.part_bytes
        self.largest = max(self.largest, used)
        self.arena.view(slot, used)[:] = self.written
        self.arena.note_use(slot, used)
        start = 0
        for number in sizes:
            size = number * self.part_bytes - 5
            self.parts.append((slot, self.written, size, [self.arena.lease(slot, start, size)]))
            start += number * self.part_bytes
        self.arena.finish(slot)

    @precondition(lambda self: self.parts)
    @rule(data=st.data())
    def make_a_view(self, data: st.DataObject) -> None:
        views = self.parts[data.draw(st.integers(0, len(self.parts) - 1))][3]
        place = data.draw(st.integers(0, len(views) - 1))  # Hypothesis would keep a drawn view
        views.append(views[place][len(views[place]) // 2 :])

    @precondition(lambda self: self.parts)
    @rule(data=st.data())
    def drop_a_part(self, data: st.DataObject) -> None:
        self.parts.pop(data.draw(st.integers(0, len(self.parts) - 1)))

    @rule()
    def fork(self) -> None:
        self.seen += self.arena.leases()  # as happens before a fork

    @rule()
    def child_ends(self) -> None:
        self.seen.clear()

    @rule()
    def rest(self) -> None:
        self.arena.rest()

    @invariant()
    def batches_are_what_was_written(self) -> None:
        for _, written, _, views in self.parts:
            assert all(view[0] == view[-1] == written for view in views)

    @invariant()
    def no_more_is_resident_than_what_is_held_and_a_window(self) -> None:
        if self.seen:
            return
        assert self.arena.leased_count == len({slot for slot, *_ in self.parts})
        alive = sum(size for _, _, size, _ in self.parts)
        in_flight = max(self.window, len(self.busy)) + 2
        assert resident(self.arena) <= 1.25 * alive + in_flight * self.largest + SLACK_BYTES

    def teardown(self) -> None:
        for slot in self.busy:
            self.arena.release(slot)
        self.seen.clear()
        self.parts.clear()
        slots = acquire_all(self.arena)
        assert len(slots) == len(set(slots))
        self.arena.close()


TestOneOwner = OneOwner.TestCase
TestOneOwner.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
