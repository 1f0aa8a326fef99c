from __future__ import annotations

import time

from feedline.system.timing import Clock, on_threads, usual_s


def test_time_goes_by_whether_it_is_spent_computing_or_not() -> None:
    clock = Clock()
    before = clock.now()
    time.sleep(0.02)
    slept, computed = clock.since(before)
    assert slept >= 0.019
    assert computed < slept / 2
    before = clock.now()
    sum(range(10**6))
    spent, computed = clock.since(before)
    assert computed <= spent * 1.1
    clock.close()
    clock.close()


def test_where_the_system_does_not_tell() -> None:
    clock = Clock()
    clock.close()
    before = clock.now()
    time.sleep(0.01)
    assert clock.since(before)[0] >= 0.009


def test_the_median_of_some_calls() -> None:
    clock = Clock()
    calls: list[float] = []

    def call() -> None:
        time.sleep(0.01 if calls else 0.03)
        calls.append(0)

    assert 0.009 < usual_s(call, clock) < 0.03
    assert len(calls) == 5
    assert usual_s(lambda: time.sleep(0.02), clock, most_s=0.01) >= 0.019
    clock.close()


def test_threads_that_wait_make_more_and_those_that_hold_the_lock_do_not() -> None:
    def wait() -> None:
        time.sleep(0.002)

    def hold() -> None:
        sum(range(20_000))

    for call, is_more in ((wait, True), (hold, False)):
        one = on_threads([call], time.monotonic() + 0.2)
        two = on_threads([call, call], time.monotonic() + 0.2)
        assert one.failure is None
        assert (two.rate > 1.5 * one.rate) == is_more


def test_what_fails_on_threads_is_told() -> None:
    def fail() -> None:
        raise RuntimeError("not here")

    made = on_threads([fail, lambda: None], time.monotonic() + 60)
    assert made.rate == 0
    assert str(made.failure) == "not here"
