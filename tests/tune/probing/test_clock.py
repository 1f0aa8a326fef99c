from __future__ import annotations

import time

from feedline.tune.probing.clock import Clock, shortest_s


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


def test_the_shortest_of_some_calls() -> None:
    clock = Clock()
    calls: list[float] = []

    def call() -> None:
        time.sleep(0.01 if calls else 0.03)
        calls.append(0)

    assert 0.009 < shortest_s(call, clock) < 0.03
    assert len(calls) == 5
    assert shortest_s(lambda: time.sleep(0.02), clock, most_s=0.01) >= 0.019
    clock.close()
