"""Batches that are read ahead."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial

import pytest

from feedline.datasets.framework import upcoming
from feedline.datasets.framework.upcoming import Upcoming


@pytest.fixture
def ahead() -> Iterator[Upcoming]:
    made = Upcoming()
    yield made
    made.close()


def test_a_batch_is_read_once_and_returned_once(ahead: Upcoming) -> None:
    reads, has_begun = list[str](), threading.Event()

    def read() -> str:
        reads.append(threading.current_thread().name)
        has_begun.set()
        return "batch"

    for _ in range(2):
        ahead.begin(b"a", read)
    assert has_begun.wait(100)
    assert ahead.take(b"a") == "batch"
    assert ahead.take(b"a") is None
    assert reads == ["feedline-fetch_0"]
    assert ahead.take(b"b") is None


def test_a_batch_that_cannot_be_prefetched_is_left_to_the_reader(ahead: Upcoming) -> None:
    ahead.begin(b"a", lambda: 1 // 0)
    assert ahead.take(b"a") is None


def test_a_batch_that_waits_for_its_turn_is_left_to_the_reader(ahead: Upcoming) -> None:
    may_end, begun = threading.Event(), threading.Barrier(upcoming.AT_ONCE + 1, timeout=100)
    for number in range(upcoming.AT_ONCE):
        ahead.begin(bytes([number]), lambda: (begun.wait(), may_end.wait(100)))
    begun.wait()
    ahead.begin(b"late", lambda: pytest.fail("read twice"))
    assert ahead.take(b"late") is None
    may_end.set()


class Reader:
    """Reads a batch; tests check whether something keeps it alive."""

    def fail(self) -> None:
        raise OSError

    def wait(self, until: threading.Event) -> None:
        until.wait(100)


def test_idle_threads_keep_no_reader_alive(ahead: Upcoming) -> None:
    may_end, reader = threading.Event(), Reader()
    for number in range(upcoming.AT_ONCE):
        ahead.begin(bytes([number]), partial(reader.wait, may_end))
    ahead.begin(b"cancelled", reader.fail)
    assert ahead.take(b"cancelled") is None
    may_end.set()
    for number in range(upcoming.AT_ONCE):
        ahead.take(bytes([number]))
    ahead.begin(b"fails", reader.fail)
    released, kept = threading.Event(), weakref.ref(reader, lambda _: released.set())
    gc.disable()
    try:
        del reader
        assert released.wait(100)
        assert kept() is None
    finally:
        gc.enable()


def test_more_batches_are_read_at_once_on_request(ahead: Upcoming) -> None:
    """The reads wait for each other: they can only finish if all run at once."""
    barrier = threading.Barrier(upcoming.MOST, timeout=100)
    for number in range(upcoming.MOST):
        ahead.begin(bytes([number]), barrier.wait, at_once=upcoming.MOST)
    done, _ = wait([future for _, future in ahead._begun.values()], timeout=100)
    assert sorted(str(future.result()) for future in done) == [str(number) for number in range(upcoming.MOST)]


def test_batches_that_are_never_requested_are_dropped(ahead: Upcoming, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        ahead.begin(bytes([number]), int)
    assert list(ahead._begun) == [bytes([number]) for number in range(upcoming.MOST)]
    monkeypatch.setattr(upcoming, "_UNWANTED_S", -1.0)
    ahead.begin(b"new", int)
    assert list(ahead._begun) == [b"new"]


def test_the_reader_waits_for_a_batch_that_is_being_read(ahead: Upcoming) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def read() -> bool:
        has_begun.set()
        return may_end.wait(100)

    ahead.begin(b"a", read)
    assert has_begun.wait(100)
    with ThreadPoolExecutor(1) as threads:
        taken = threads.submit(ahead.take, b"a")
        assert not taken.done()
        may_end.set()
        assert taken.result() is True
