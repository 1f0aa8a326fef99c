"""The verdict on measurements: what is wrong, what to do, and why."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from feedline.insight.batch_rows import COLUMNS, Row, Totals, columns_of, delivered_columns, row
from feedline.insight.histogram import Spread
from feedline.insight.period import Period, period_of, stall_of
from feedline.insight.stats import Stats
from feedline.insight.verdict import judge
from feedline.system.shown import percent

MS = 1_000_000
ASKED = COLUMNS.index("asked")


def verdict_of(period: Period, **settings: Any) -> str:
    return str(judge(period, **settings))


def steady(seconds: float) -> Spread:
    return Spread(100, seconds, seconds, seconds, seconds)


def period(
    waits: dict[str, float], *, body_s: float = 0.05, busy_s: float = 0.1, workers: int = 2, **rest: Any
) -> Period:
    """Return a period of a hundred batches with these waits in seconds."""
    seconds = 100 * body_s + sum(waits.values())
    share = 100 * busy_s / max(workers, 1) / seconds
    figures: dict[str, Any] = {"stages": {"fetch": steady(busy_s)}, "body": steady(body_s), **rest}
    stall = stall_of(sum(waits.values()), waits.get("start", 0.0), seconds)
    return Period(100, 3200, seconds, stall, waits=waits, worker_utilisation=[share] * workers, **figures)


@pytest.mark.parametrize(
    ("waits", "wrong", "remedy"),
    [
        ({"fetch": 3.4}, "data-bound: training waited 40 % of the time, mostly for fetch", "Use 3 workers"),
        ({"collate": 3.4, "fetch": 0.1}, "mostly for collate", "Use 3 workers"),
        ({"queue": 3.4}, "mostly for a free worker", "Use 3 workers. Workers were mostly busy with fetch"),
        ({"transfer": 3.4}, "mostly for batches in transit", "Use larger batches"),
        ({"slot": 3.4}, "mostly for free slots", "Drop batches sooner, or raise memory_budget. The program holds"),
        ({"device": 3.4}, "mostly for the device", "Use a cheaper device_transform"),
        ({"deliver": 3.4}, "mostly for the training process itself", "Make batches cheaper to unpack"),
        ({"start": 50.0}, "start-bound: starting took 91 % of the time", "Keep the workers from epoch to epoch"),
        ({"start": 1.0, "fetch": 0.01}, "compute-bound: data was ready 99.8 % of the time", "2 workers are about"),
        ({}, "compute-bound: data was ready 100.0 % of the time", "2 workers are about right"),
    ],
)
def test_the_verdict_names_the_problem_and_then_the_remedy(waits: dict[str, float], wrong: str, remedy: str) -> None:
    text = verdict_of(period(waits), worker_count=2)
    first, _, rest = text.partition(". ")
    assert wrong in first
    assert rest.startswith(remedy)
    assert len(first.split()) < 15, first
    assert text.endswith(".")


def test_the_verdict_and_the_tables_have_one_definition_of_waiting_and_of_making_a_batch() -> None:
    """Ten batches on a crowded machine: each took 1.9 s, 0.165 s of it with a core; workers took 4 s to start."""
    second = 1_000_000_000
    rows = [
        row(
            worker=0, given=1, began=(4 + 2 * number) * second, fetch=1_900_000_000, asked=(4 + 2 * number) * second,
            computed=150_000_000, queued=1_735_000_000, finished=(4 + 2 * number) * second + 1_900_000_000,
            came=(4 + 2 * number) * second + 1_900_000_000, got=(4 + 2 * number) * second + 1_900_000_000,
            body=100_000_000, first=int(not number),
        )
        for number in range(10)
    ]  # fmt: skip
    rows[0] = (*rows[0][:ASKED], 1, *rows[0][ASKED + 1 :])  # requested before the worker had started
    totals = Totals(begun=1)
    totals.fold(columns_of(rows))
    found = period_of(totals, 1)
    assert found.starting_s == pytest.approx(4.0)
    assert found.stall == pytest.approx(19 / (found.seconds - 4))
    text = verdict_of(found, worker_count=1, cores=2)
    assert f"training waited {percent(found.stall)} of the time" in text
    assert found.stages["fetch"].mean == pytest.approx(1.9)
    assert "A batch takes 1.9 s to make (8 % computing, 91 % without a core) and 100 ms to train on" in text
    stats = str(Stats(found, None, found, {"workers": 1}, {"cores": 2}))
    assert re.search(rf"waited +{100 * found.stall:.1f} %.*\nstart-up +4.0 s", stats)
    shares = re.findall(r"^  \w+ .* s  +([\d.]+) %$", stats, re.MULTILINE)
    assert sum(map(float, shares)) == pytest.approx(100 * found.stall, abs=0.2), "causes, without start-up"


def test_the_number_of_workers_follows_from_busy_time_and_body_time() -> None:
    slow = period({"fetch": 10.0}, body_s=0.05, busy_s=0.28)
    assert "Use 6 workers. " in verdict_of(slow, worker_count=2)
    quick = period({"fetch": 0.01}, busy_s=0.08, workers=8)
    assert "data was ready 99.8 % of the time. 2 workers would do. " in verdict_of(quick, worker_count=8)
    assert "2 workers are about right" in verdict_of(period({}, busy_s=0.09), worker_count=2)
    small = period({"fetch": 0.01}, busy_s=0.0003)
    assert "No workers are needed (num_workers=0)" in verdict_of(small, worker_count=2)


def test_more_workers_are_not_advised_if_the_cores_are_fully_used() -> None:
    full = period({"fetch": 10.0}, body_s=0.01, busy_s=0.2, cpu_s=0.2, workers=4)
    text = verdict_of(full, worker_count=4, cores=4)
    assert "Make samples cheaper (`feedline doctor module:dataset` shows what takes long), or add cores. " in text
    assert "Samples need more CPU than your 4 cores have. " in text
    assert "Use " not in text


def test_more_workers_are_not_advised_if_workers_wait_for_a_core() -> None:
    crowded = period({"fetch": 10.0}, body_s=0.05, busy_s=0.28, cpu_s=0.1, queued_s=0.15, alone_s=0.13)
    own = verdict_of(crowded, worker_count=2, cores=1)
    assert ", or add cores. Workers were ready to run but had no core 54 % of the time. " in own
    others = verdict_of(crowded, worker_count=2, cores=4)
    assert ". Not sure: run it again on a quiet machine. Workers were ready to run but had no core 54 %" in others
    assert "Use " not in own + others
    alone = period({"fetch": 28.0}, body_s=0.05, cpu_s=0.1, queued_s=0.15, alone_s=0.13, workers=0)
    text = verdict_of(alone, worker_count=0, cores=4)
    assert "The loop was ready to run but had no core 54 % of the time. Other programs used the cores. " in text
    assert "Use " not in text


CHEAP = {"body_s": 3e-5, "busy_s": 3e-4, "cpu_s": 3e-4}


@pytest.mark.parametrize("cores", [2, 16])
def test_no_workers_are_advised_if_batches_are_cheaper_than_their_hand_over(cores: int) -> None:
    alone = verdict_of(period({"fetch": 0.03}, workers=0, **CHEAP), worker_count=0, cores=cores)
    assert ". Make samples cheaper (" in alone
    assert "Workers would not help: handing a batch over costs about 0.5 ms. A batch takes 0.3 ms to make" in alone
    six = verdict_of(period({"queue": 0.08}, workers=6, **CHEAP), worker_count=6, cores=cores)
    assert ". Set num_workers=0. " in six
    auto = verdict_of(period({"fetch": 0.03}, workers=0, **CHEAP), worker_count=0, cores=cores, auto="settled")
    assert "Use " not in auto + alone + six


def test_the_verdict_does_not_contradict_auto() -> None:
    slow = period({"fetch": 10.0}, body_s=0.05, busy_s=0.28, cpu_s=0.014)
    settled = verdict_of(slow, worker_count=2, cores=4, auto="settled")
    assert 'num_workers="auto" has found no number of workers faster than 2. ' in settled
    assert "still searching" in verdict_of(slow, worker_count=2, cores=4, auto="searching")
    ready = verdict_of(period({"fetch": 0.01}, busy_s=0.08, workers=8), worker_count=8, auto="settled")
    assert "8 workers are about right" in ready


def test_more_prefetching_is_advised_if_there_are_enough_workers() -> None:
    assert ". Raise prefetch_factor. " in verdict_of(period({"fetch": 2.0}, busy_s=0.05), worker_count=2)


def test_a_stage_named_by_the_user_is_mentioned() -> None:
    stages = {"fetch": steady(0.1), "decode": steady(0.08), "read": steady(0.01)}
    assert "mostly for decode. Use 3 workers" in verdict_of(period({"fetch": 3.4}, stages=stages), worker_count=2)
    stages["decode"] = steady(0.03)
    assert "mostly for fetch" in verdict_of(period({"fetch": 3.4}, stages=stages), worker_count=2)


def test_stragglers_are_distinguished_from_slow_samples() -> None:
    stages = {"fetch": Spread(100, 0.1, 0.05, 0.06, 1.0)}
    text = verdict_of(period({"order": 3.4}, busy_s=0.08, stages=stages), worker_count=2)
    assert "mostly for a late batch. Let idle workers take over late work (seed=), deliver batches as they " in text
    assert "ready. A slow fetch takes 20 times as long as a typical one; see slowest_samples. " in text
    assert "times as long" not in verdict_of(period({"order": 3.4}, busy_s=0.08), worker_count=2)
    few = verdict_of(period({"order": 3.4}, stages=stages), worker_count=2)
    assert "mostly for a late batch. Use 3 workers. Later" in few, "with too few workers, some batch is always late"


# -- measurements on a busy machine ------------------------------------------------------------------------------------


def noisy(
    dice: random.Random, *, make_ms: float, computing: float, step_ms: float, workers: int, neighbours: float
) -> Period:
    """Return the measurements of a waiting loop while other programs use the cores in bursts."""
    now, rows, free = 0, list[Row](), [0] * max(workers, 1)
    for number in range(300):
        burst = dice.random() < 0.1
        away = neighbours * dice.uniform(0.5, 1.5) * (4 if burst else 0.67)
        made = int(make_ms * MS * dice.uniform(0.9, 1.2))
        computed = int(made * computing)
        queued = int(computed * away)
        busy, asked = made + queued, now
        worker = number % workers if workers else -1
        began = max(free[worker], 0) if workers else asked
        finished = free[worker] = began + busy
        came = max(asked, finished) + int(0.1 * MS * dice.uniform(0.5, 3))
        rows.append(
            row(
                ordinal=number, worker=worker, samples=1, given=began, began=began, fetch=busy, finished=finished,
                came=came, asked=asked, got=came, computed=computed, queued=queued,
                body=int(step_ms * MS) if number else -1,
            )
        )  # fmt: skip
        now = came + int(step_ms * MS * dice.uniform(0.9, 1.3))
    columns = delivered_columns(rows)
    totals = Totals()
    totals.fold(columns)
    return period_of(totals, workers)


@pytest.mark.parametrize("neighbours", [0.0, 0.1, 1.0])
def test_advice_on_a_busy_machine_is_safe(neighbours: float) -> None:
    for dice in map(random.Random, range(8)):
        cheap = noisy(dice, make_ms=0.3, computing=1.0, step_ms=0.05, workers=0, neighbours=neighbours)
        assert "Use " not in verdict_of(cheap, worker_count=0, cores=2)
        full = noisy(dice, make_ms=20, computing=1.0, step_ms=1, workers=2, neighbours=neighbours)
        assert "Use " not in verdict_of(full, worker_count=2, cores=2)
        sleeping = noisy(dice, make_ms=20, computing=0.05, step_ms=4, workers=2, neighbours=neighbours)
        text = verdict_of(sleeping, worker_count=2, cores=2)
        assert any(f"Use {count} workers. " in text for count in (5, 6, 7)), text
