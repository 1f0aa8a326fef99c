"""The sentence that says why training waits."""

from __future__ import annotations

from typing import Any

import pytest

from feedline.observe.histogram import Spread
from feedline.observe.period import Period
from feedline.observe.verdict import verdict_of


def steady(seconds: float) -> Spread:
    return Spread(100, seconds, seconds, seconds, seconds)


def period(
    waits: dict[str, float], *, body_s: float = 0.05, busy_s: float = 0.1, workers: int = 2, **rest: Any
) -> Period:
    """A hundred batches; `waits` in seconds, of which the rest follows."""
    seconds = 100 * body_s + sum(waits.values())
    share = 100 * busy_s / max(workers, 1) / seconds
    told: dict[str, Any] = {"stages": {"fetch": steady(busy_s)}, "body": steady(body_s), **rest}
    return Period(
        100, 3200, seconds, sum(waits.values()) / seconds, waits=waits, worker_utilisation=[share] * workers, **told
    )


@pytest.mark.parametrize(
    ("waits", "sentence"),
    [
        ({"fetch": 3.4}, "data-bound: training waited 40 % of the time, mostly for fetch; 3 workers would remove it"),
        ({"collate": 3.4, "fetch": 0.1}, "mostly for collate; 3 workers would remove it"),
        ({"queue": 3.4}, "mostly for queue: no worker was free, most were at fetch; 3 workers would remove it"),
        ({"transfer": 3.4}, "mostly for batches on their way from the workers; larger batches help"),
        ({"slot": 3.4}, "mostly for slots: the program holds batches"),
        ({"device": 3.4}, "mostly for the device"),
        ({"deliver": 3.4}, "mostly for the training process itself"),
        ({"start": 50.0}, "start-bound: starting took 91 % of the time; keep the workers"),
        ({"start": 1.0, "fetch": 0.01}, "compute-bound: data was ready 99.8 % of the time"),
        ({}, "compute-bound: data was ready 100.0 % of the time"),
    ],
)
def test_the_cause_is_named(waits: dict[str, float], sentence: str) -> None:
    assert sentence in verdict_of(period(waits), worker_count=2)


def test_without_workers_none_are_to_be_kept() -> None:
    slow = verdict_of(period({"start": 50.0}, workers=0), worker_count=0)
    assert "starting took 91 % of the time; make the dataset quicker to open" in slow


def test_the_number_of_workers_follows_from_busy_time_and_body_time() -> None:
    slow = period({"fetch": 10.0}, body_s=0.05, busy_s=0.28)
    assert "6 workers would remove it" in verdict_of(slow, worker_count=2)
    assert "6 workers would remove it if they wait for storage; if they compute, the 4 cores" in verdict_of(
        slow, worker_count=2, cores=4
    )
    quick = period({"fetch": 0.01}, busy_s=0.08, workers=8)
    assert verdict_of(quick, worker_count=8) == "compute-bound: data was ready 99.8 % of the time; 2 workers would do"
    assert "2 workers are about as many as it takes" in verdict_of(period({}, busy_s=0.09), worker_count=2)


def test_what_the_training_process_does_itself_does_not_need_workers() -> None:
    own = period({"fetch": 6.0, "deliver": 5.0}, body_s=0.05, busy_s=0.2)
    assert "3 workers would remove it" in verdict_of(own, worker_count=2), "0.2 s in 0.1 s, and a little more"


def test_without_workers_the_wait_is_the_work() -> None:
    inline = period({"fetch": 8.0, "collate": 2.0}, workers=0)
    assert verdict_of(inline, worker_count=0).endswith("mostly for fetch; 3 workers would remove it")
    idle = period({"fetch": 0.001}, workers=0)
    assert verdict_of(idle, worker_count=0).endswith("no workers are needed")


def test_a_loop_that_does_nothing_cannot_be_fed_fast_enough() -> None:
    empty = period({"fetch": 10.0}, body_s=0.00001, busy_s=0.1)
    assert "no number of workers would remove it" in verdict_of(empty, worker_count=2)


def test_enough_workers_and_still_waiting_is_a_matter_of_bursts() -> None:
    assert "a larger prefetch_factor" in verdict_of(period({"fetch": 2.0}, busy_s=0.05), worker_count=2)


def test_a_stage_of_the_users_own_is_named() -> None:
    stages = {"fetch": steady(0.1), "decode": steady(0.08), "read": steady(0.01)}
    assert "mostly for decode; 3 workers" in verdict_of(period({"fetch": 3.4}, stages=stages), worker_count=2)
    stages["decode"] = steady(0.03)
    assert "mostly for fetch" in verdict_of(period({"fetch": 3.4}, stages=stages), worker_count=2)


def test_stragglers_are_told_from_slow_samples() -> None:
    stages = {"fetch": Spread(100, 0.1, 0.05, 0.06, 1.0)}
    told = verdict_of(period({"order": 3.4}, busy_s=0.08, stages=stages), worker_count=2)
    assert "mostly for a late batch while later ones were ready (a slow" in told
    assert "; in_order=False delivers those first" in told
    assert "a slow fetch takes 20 times as long as most" in told
    assert "times as long" not in verdict_of(period({"order": 3.4}, busy_s=0.08), worker_count=2)
    few = verdict_of(period({"order": 3.4}, stages=stages), worker_count=2)
    assert "mostly for a late batch while later ones were ready (a slow" in few
    assert few.endswith("3 workers would remove it"), "with too few workers some batch is always late"


def test_little_is_said_of_few_batches() -> None:
    assert verdict_of(Period(), worker_count=2) == "nothing to say yet: no batch was delivered"
    few = Period(3, 96, 1.5, 0.9, start_s=1.2, waits={"start": 1.2})
    assert verdict_of(few, worker_count=2) == "too early to say: 3 batches in 1.5 s, of which 1.2 s until the first"
    assert "1 batch in" in verdict_of(Period(1, 32, 1.5), worker_count=2)
