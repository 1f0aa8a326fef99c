"""Rows about batches, and their totals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.insight.batch_rows import Totals, columns_of, row
from feedline.insight.period import period_of

NAMES = ("began", "fetch", "finished", "came", "asked", "got", "body")


def some_rows(seed: int, count: int) -> list[tuple[int, ...]]:
    drawn = np.random.default_rng(seed).integers(0, 10**10, (count, len(NAMES))).tolist()
    return [row(worker=number % 3 - 1, **dict(zip(NAMES, one, strict=True))) for number, one in enumerate(drawn)]


ROWS = st.builds(some_rows, st.integers(0, 1000), st.integers(0, 12))


def folded(rows: list[tuple[int, ...]]) -> Totals:
    totals = Totals()
    totals.fold(columns_of(rows))
    return totals


@settings(deadline=None)  # other tests may use the cores
@given(ROWS, ROWS)
def test_totals_do_not_depend_on_how_rows_are_split(
    first: list[tuple[int, ...]], second: list[tuple[int, ...]]
) -> None:
    pieces = folded(first)
    pieces.fold(columns_of(second))
    assert period_of(pieces, 2) == period_of(folded(first + second), 2)


def test_a_row_can_represent_several_batches() -> None:
    once = {"samples": 4, "bytes": 10, "asked": 10, "got": 30, "came": 10, "finished": 8, "began": 2, "fetch": 6}
    eight = folded([row(**once, weight=8)])
    eight.rest(8, waited=7 * 20)
    exact, sampled = period_of(folded([row(**once)] * 8), 1), period_of(eight, 1)
    assert replace(sampled, body=exact.body) == exact
    assert eight.samples == 32


def test_waits_of_batches_without_a_row_are_divided_like_those_with_one() -> None:
    times = {"began": 100, "fetch": 60, "collate": 20, "finished": 180, "came": 180, "asked": 100, "got": 190}
    totals = folded([row(**times, worker=0, weight=3, samples=4, behind=1)])
    totals.rest(9, waited=360)
    assert totals.waited == 450
    assert {cause: waited for cause, waited in totals.waits.items() if waited} == {
        "fetch": 300,
        "collate": 100,
        "deliver": 50,
    }
    assert (totals.batches, totals.samples, totals.ready, totals.busy) == (9, 36, 9, {0: 720})


def test_figures_of_a_period() -> None:
    totals = Totals(begun=1_000_000_000)
    totals.open(100_000_000)
    second = 1_000_000_000
    rows = [
        row(
            worker=number % 2,
            samples=4,
            began=number * second + second // 2,
            fetch=second // 4,
            transform=second // 8,
            finished=(number + 1) * second,
            came=(number + 1) * second,
            asked=number * second + second // 2,
            got=(number + 1) * second,
            behind=0,
            body=second // 2,
        )
        for number in range(1, 11)
    ]
    totals.fold(columns_of(rows))
    totals.add_stage("decode", second // 5)
    period = period_of(totals, 3)
    assert (period.batches, period.samples, period.seconds) == (10, 40, 10.0)
    assert (period.batches_per_s, period.samples_per_s) == (1.0, 4.0)
    assert period.start_s == 1.0
    assert period.waits == {"start": 0.1, "fetch": 1.25, "transform": 1.25, "write": 2.5}
    assert period.starting_s == 0.1
    assert period.stall == 5.0 / 9.9, "without starting"
    assert period.worker_utilisation == [0.25, 0.25, 0.0]
    assert period.body.mean == 0.5
    assert list(period.stages) == ["wait", "fetch", "transform", "transfer", "decode"]
    assert period.stages["fetch"].mean == 0.125
    assert period.prefetch_occupancy == 0.0
    assert period.busy_s == 0.5
    assert period_of(totals, 1).busy_s == 0.5, "work of retired workers counts"


def test_cpu_time_is_averaged_over_batches_with_a_known_value() -> None:
    made = {"began": 10, "finished": 10_000_010, "asked": 5, "came": 10_000_020, "got": 10_000_030}
    known = [row(**made, worker=worker, computed=2_000_000, queued=4_000_000) for worker in (0, 1)]
    unknown = row(**made, worker=2)
    period = period_of(folded([*known, unknown]), 3)
    assert (period.cpu_s, period.queued_s) == (0.002, 0.004)
    assert period.make_s == pytest.approx(0.006, rel=1e-4)
    assert period.computing == pytest.approx(1 / 3, rel=1e-4), "waiting for a core is not sleeping"
    assert period.as_dict()["computing"] == period.computing
    none = period_of(folded([unknown]), 3)
    assert (none.cpu_s, none.computing, none.make_s) == (None, None, none.busy_s)
