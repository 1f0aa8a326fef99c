"""What the verdict says of measurements: what is wrong, what to do, and why."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from feedline.insight.batch_rows import Row, Totals, columns_of, row, settle_order
from feedline.insight.histogram import Spread
from feedline.insight.period import Period, period_of
from feedline.insight.verdict import load_of, verdict_of
from feedline.insight.worker_model import HANDOVER_S

MS = 1_000_000


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
def test_first_what_is_wrong_then_what_to_do(waits: dict[str, float], wrong: str, remedy: str) -> None:
    said = verdict_of(period(waits), worker_count=2)
    first, _, rest = said.partition(". ")
    assert wrong in first
    assert rest.startswith(remedy)
    assert len(first.split()) < 15, first
    assert said.endswith(".")


def test_without_workers_none_are_to_be_kept() -> None:
    slow = verdict_of(period({"start": 50.0}, workers=0), worker_count=0)
    assert "starting took 91 % of the time. Make the dataset quicker to open" in slow


def test_the_number_of_workers_follows_from_busy_time_and_body_time() -> None:
    slow = period({"fetch": 10.0}, body_s=0.05, busy_s=0.28)
    assert "Use 6 workers. " in verdict_of(slow, worker_count=2)
    quick = period({"fetch": 0.01}, busy_s=0.08, workers=8)
    assert "data was ready 99.8 % of the time. 2 workers would do. " in verdict_of(quick, worker_count=8)
    assert "2 workers are about right" in verdict_of(period({}, busy_s=0.09), worker_count=2)
    small = period({"fetch": 0.01}, busy_s=0.0003)
    assert "No workers are needed (num_workers=0)" in verdict_of(small, worker_count=2)


def test_computing_and_sleeping_are_separated_by_the_cpu_time_that_was_measured() -> None:
    slow = period({"fetch": 10.0}, body_s=0.05, busy_s=0.28)
    sleeping = verdict_of(replace(slow, cpu_s=0.014), worker_count=2, cores=4)
    assert "Use 6 workers. A batch takes 280 ms to make (5 % computing)" in sleeping
    computing = verdict_of(replace(slow, cpu_s=0.28), worker_count=2, cores=4)
    assert "Use 4 workers, and make samples cheaper. Samples need more CPU than your 4 cores have. " in computing
    assert "(100 % computing)" in computing
    for said in (sleeping, computing):
        assert "if they" not in said


def test_no_more_workers_where_the_cores_are_exhausted() -> None:
    full = period({"fetch": 10.0}, body_s=0.01, busy_s=0.2, cpu_s=0.2, workers=4)
    said = verdict_of(full, worker_count=4, cores=4)
    assert "Make samples cheaper (`feedline doctor module:dataset` shows what takes long), or add cores. " in said
    assert "Samples need more CPU than your 4 cores have. " in said
    assert "Use " not in said


def test_no_more_workers_where_those_there_wait_for_a_core() -> None:
    crowded = period({"fetch": 10.0}, body_s=0.05, busy_s=0.28, cpu_s=0.1, queued_s=0.15, alone_s=0.13)
    own = verdict_of(crowded, worker_count=2, cores=1)
    assert ", or add cores. Workers were ready to run but had no core 54 % of the time. " in own
    others = verdict_of(crowded, worker_count=2, cores=4)
    assert ". Not sure: run it again on a quiet machine. Workers were ready to run but had no core 54 %" in others
    assert "Use " not in own + others
    alone = period({"fetch": 28.0}, body_s=0.05, cpu_s=0.1, queued_s=0.15, alone_s=0.13, workers=0)
    said = verdict_of(alone, worker_count=0, cores=4)
    assert "The loop was ready to run but had no core 54 % of the time. Other programs used the cores. " in said
    assert "Use " not in said


def test_workers_that_sleep_are_to_be_more_also_in_a_crowd() -> None:
    crowded = period({"fetch": 10.0}, body_s=0.05, busy_s=0.28, cpu_s=0.01, queued_s=0.15, alone_s=0.13)
    assert ". Use 3 workers. " in verdict_of(crowded, worker_count=2, cores=2)


def test_a_crowd_does_not_make_a_hand_over_expensive() -> None:
    """The training process waited 20 ms for a core to take a batch over: without workers it would have waited, too."""
    stages = {"fetch": steady(0.09), "transfer": steady(0.02)}
    crowded = period(
        {"fetch": 9.0}, body_s=0.01, busy_s=0.09, stages=stages, cpu_s=0.03, queued_s=0.06, alone_s=0.03
    )  # fmt: skip
    assert "num_workers=0" not in verdict_of(crowded, worker_count=2, cores=2)


CHEAP = {"body_s": 3e-5, "busy_s": 3e-4, "cpu_s": 3e-4}


@pytest.mark.parametrize("cores", [2, 16])
def test_for_batches_of_less_than_a_hand_over_no_workers_are_advised(cores: int) -> None:
    alone = verdict_of(period({"fetch": 0.03}, workers=0, **CHEAP), worker_count=0, cores=cores)
    assert ". Make samples cheaper (" in alone
    assert "Workers would not help: handing a batch over costs about 0.5 ms. A batch takes 0.3 ms to make" in alone
    six = verdict_of(period({"queue": 0.08}, workers=6, **CHEAP), worker_count=6, cores=cores)
    assert ". Set num_workers=0. " in six
    auto = verdict_of(period({"fetch": 0.03}, workers=0, **CHEAP), worker_count=0, cores=cores, auto="settled")
    assert "Use " not in auto + alone + six


def test_workers_that_are_slower_than_none_are_advised_against_by_what_was_measured() -> None:
    """A hand-over that seems to be cheap, and yet training gets a third of the batches that it would make itself."""
    stages = {"fetch": steady(3e-4), "transfer": steady(5e-5)}
    slow = period({"queue": 0.086}, workers=6, stages=stages, **CHEAP)
    said = verdict_of(slow, worker_count=6, cores=2)
    assert ". Set num_workers=0. " in said
    assert "Training got 1,124 batches/s from workers, and would get about 3,030 without. " in said


def test_a_hand_over_that_was_measured_counts() -> None:
    stages = {"fetch": steady(0.001), "transfer": steady(0.0006)}
    slow = period({"transfer": 0.2}, body_s=0.0001, busy_s=0.001, stages=stages)
    assert "Set num_workers=0. Workers had finished them" in verdict_of(slow, worker_count=2, cores=16)
    assert load_of(slow).handover_s == 0.0006
    few = {"fetch": steady(0.001), "transfer": replace(steady(0.0006), count=3)}
    assert load_of(replace(slow, stages=few)).handover_s == HANDOVER_S, "too few to go by"


def test_what_auto_has_settled_on_is_not_contradicted() -> None:
    slow = period({"fetch": 10.0}, body_s=0.05, busy_s=0.28, cpu_s=0.014)
    settled = verdict_of(slow, worker_count=2, cores=4, auto="settled")
    assert 'num_workers="auto" has found no number of workers faster than 2. ' in settled
    assert "still searching" in verdict_of(slow, worker_count=2, cores=4, auto="searching")
    ready = verdict_of(period({"fetch": 0.01}, busy_s=0.08, workers=8), worker_count=8, auto="settled")
    assert "8 workers are about right" in ready


def test_what_the_training_process_does_itself_does_not_need_workers() -> None:
    own = period({"fetch": 6.0, "deliver": 5.0}, body_s=0.05, busy_s=0.2)
    assert "Use 3 workers" in verdict_of(own, worker_count=2), "0.2 s in 0.1 s, and a little more"


def test_without_workers_the_wait_is_the_work() -> None:
    inline = period({"fetch": 8.0, "collate": 2.0}, workers=0)
    assert "mostly for fetch. Use 3 workers. " in verdict_of(inline, worker_count=0)
    idle = period({"fetch": 0.001}, workers=0)
    assert "No workers are needed" in verdict_of(idle, worker_count=0)


def test_a_loop_that_does_nothing_cannot_be_fed_fast_enough() -> None:
    empty = period({"fetch": 10.0}, body_s=0.00001, busy_s=0.1)
    said = verdict_of(empty, worker_count=2, cores=8)
    assert "Use 8 workers. The loop spends almost no time on a batch, so some waiting will remain. " in said


def test_enough_workers_and_still_waiting_is_a_matter_of_bursts() -> None:
    assert ". Raise prefetch_factor. " in verdict_of(period({"fetch": 2.0}, busy_s=0.05), worker_count=2)


def test_a_stage_of_the_users_own_is_named() -> None:
    stages = {"fetch": steady(0.1), "decode": steady(0.08), "read": steady(0.01)}
    assert "mostly for decode. Use 3 workers" in verdict_of(period({"fetch": 3.4}, stages=stages), worker_count=2)
    stages["decode"] = steady(0.03)
    assert "mostly for fetch" in verdict_of(period({"fetch": 3.4}, stages=stages), worker_count=2)


def test_stragglers_are_told_from_slow_samples() -> None:
    stages = {"fetch": Spread(100, 0.1, 0.05, 0.06, 1.0)}
    said = verdict_of(period({"order": 3.4}, busy_s=0.08, stages=stages), worker_count=2)
    assert "mostly for a late batch. Let idle workers take over late work (seed=), deliver batches as they " in said
    assert "ready. A slow fetch takes 20 times as long as a typical one; see slowest_samples. " in said
    assert "times as long" not in verdict_of(period({"order": 3.4}, busy_s=0.08), worker_count=2)
    few = verdict_of(period({"order": 3.4}, stages=stages), worker_count=2)
    assert "mostly for a late batch. Use 3 workers. Later" in few, "with too few workers some batch is always late"


def test_a_seed_is_not_advised_where_work_moves_already() -> None:
    said = verdict_of(period({"order": 3.4}, busy_s=0.08), worker_count=2, moves=True)
    assert "mostly for a late batch. Deliver batches as they come (in_order=False), or use more workers" in said
    assert "seed" not in said


def test_little_is_said_of_few_batches() -> None:
    assert verdict_of(Period(), worker_count=2) == "nothing to say yet: no batch was delivered"
    few = Period(3, 96, 1.5, 0.9, start_s=1.2, waits={"start": 1.2})
    assert verdict_of(few, worker_count=2) == "too early to say: 3 batches in 1.5 s. The first came after 1.2 s."
    assert "1 batch in" in verdict_of(Period(1, 32, 1.5), worker_count=2)


# -- measurements of a machine that is busy with other things ---------------------------------------------------------


def noisy(
    dice: random.Random, *, make_ms: float, computing: float, step_ms: float, workers: int, neighbours: float
) -> Period:
    """Return what is measured of a loop that waits, if others have the cores for a share of the time, in bursts."""
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
    columns = columns_of(rows)
    settle_order(columns)
    totals = Totals()
    totals.fold(columns)
    return period_of(totals, workers)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("neighbours", [0.0, 0.1, 1.0])
def test_on_a_busy_machine_the_advice_stays_safe(seed: int, neighbours: float) -> None:
    dice = random.Random(seed)
    cheap = noisy(dice, make_ms=0.3, computing=1.0, step_ms=0.05, workers=0, neighbours=neighbours)
    assert "Use " not in verdict_of(cheap, worker_count=0, cores=2)
    full = noisy(dice, make_ms=20, computing=1.0, step_ms=1, workers=2, neighbours=neighbours)
    assert "Use " not in verdict_of(full, worker_count=2, cores=2)
    sleeping = noisy(dice, make_ms=20, computing=0.05, step_ms=4, workers=2, neighbours=neighbours)
    said = verdict_of(sleeping, worker_count=2, cores=2)
    assert any(f"Use {count} workers. " in said for count in (5, 6, 7)), said
