"""Findings from the figures of a run: each problem is named, and no other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from feedline.insight.histogram import Spread
from feedline.insight.stats import Period, SlowSample, Stats
from feedline.tools.advise.running import Run, find
from tests.tools.advise.measurements import HEADROOM, MIB

SETTINGS = {"engine": "process", "prefetch": 2, "persistent": True, "batch_size": 32}
COUNTERS = {"workers": 4, "batches": 100, "faults": {}}


def steady(seconds: float) -> Spread:
    return Spread(100, seconds, seconds, seconds, seconds)


def run(
    waits: dict[str, float] | None = None, *, workers: int = 4, body_s: float = 0.1, busy_s: float = 0.36, **rest: Any
) -> Run:
    """Return a run of a hundred batches. By default it is sound: four workers, busy most of the time."""
    waits = waits or {}
    seconds = 100 * body_s + sum(waits.values())
    used = [100 * busy_s / workers / seconds] * workers if workers else []
    period = Period(
        100, 3200, seconds, sum(waits.values()) / seconds, waits=waits, worker_utilisation=used, body=steady(body_s),
        data_bytes=100 * MIB, stages={"fetch": steady(busy_s), **rest.pop("stages", {})},
        cpu_s=rest.pop("cpu_s", None),
    )  # fmt: skip
    counters = {**COUNTERS, "workers": workers, **rest.pop("counters", {})}
    settings = {**SETTINGS, "engine": "process" if workers else "inline", **rest.pop("settings", {})}
    last = period if rest.pop("is_second", False) else None
    growth, headroom = rest.pop("growth", 0.0), replace(HEADROOM, **rest.pop("headroom", {}))
    return Run(Stats(period, last, period, counters, settings, **rest), headroom, growth)


def test_a_sound_run_has_no_finding() -> None:
    assert find(run()) == []
    assert find(run({"fetch": 0.1}, is_second=True)) == []
    assert find(run(workers=0, busy_s=0.001, waits={"fetch": 0.1})) == []


STRAGGLING = {"fetch": Spread(100, 0.2, 0.1, 0.12, 2.0)}


PROBLEMS: list[tuple[dict[str, Any], str, float | None]] = [
    ({"waits": {"fetch": 10.0}, "workers": 2, "busy_s": 0.4, "cpu_s": 0.04}, "too-few-workers", 2.0),
    ({"waits": {"fetch": 30.0}, "workers": 0, "busy_s": 0.3, "cpu_s": 0.03}, "too-few-workers", 4.0),
    ({"waits": {"order": 10.0}, "workers": 2, "busy_s": 0.4, "cpu_s": 0.04}, "too-few-workers", 2.0),
    # What samples that compute gain from more workers depends on memory, locks and other programs: tune measures it.
    ({"waits": {"fetch": 10.0}, "workers": 2, "busy_s": 0.4, "cpu_s": 0.4}, "too-few-workers", None),
    ({"waits": {"fetch": 10.0}, "workers": 2, "busy_s": 0.4}, "too-few-workers", None),
    ({"waits": {"fetch": 10.0}, "busy_s": 0.8, "headroom": {"cores": 4}}, "slow-samples", None),
    ({"waits": {"fetch": 10.0}, "busy_s": 0.8, "headroom": {"local_ranks": 2}}, "slow-samples", None),
    ({"busy_s": 0.08}, "too-many-workers", None),
    ({"waits": {"order": 5.0}, "busy_s": 0.3, "stages": STRAGGLING}, "stragglers", 1.5),
    ({"waits": {"start": 10.0}, "is_second": True, "settings": {"persistent": False}}, "workers-restarted", 2.0),
    ({"waits": {"collate": 10.0}, "busy_s": 0.8, "stages": {"collate": steady(0.5)}}, "slow-collate", 2.0),
    ({"waits": {"write": 10.0}, "busy_s": 0.8, "stages": {"write": steady(0.5)}}, "serialisation", 2.0),
    ({"waits": {"slot": 10.0}}, "held-batches", 2.0),
    ({"waits": {"device": 10.0}}, "late-copies", 2.0),
    ({"waits": {"deliver": 10.0}}, "slow-delivery", 2.0),
    ({"counters": {"overflowed_batches": 60}}, "small-budget", None),
    ({"growth": 30.0 * MIB}, "memory-growth", None),
    ({"counters": {"recycled_workers": 3}}, "memory-growth", None),
    ({"counters": {"faults": {"skip": 3}}}, "failing-samples", None),
    ({"counters": {"failures": 1}}, "failing-samples", None),
    ({"counters": {"restarted_workers": 2}}, "dying-workers", None),
]


@pytest.mark.parametrize(("setup", "name", "gain"), PROBLEMS)
def test_the_problem_is_named_and_no_other(setup: dict[str, Any], name: str, gain: float | None) -> None:
    findings = find(run(**setup))
    assert [finding.name for finding in findings] == [name]
    (finding,) = findings
    assert finding.gain == (None if gain is None else pytest.approx(gain, rel=0.1))
    assert finding.fix


def test_findings_without_a_gain_are_not_reported() -> None:
    assert find(run({"collate": 0.01}, stages={"collate": steady(0.3)})) == [], "training does not wait"
    kept = run({"start": 10.0}, is_second=True)
    assert find(kept) == [], "workers are persistent, so this was the first of several epochs"
    saturated = find(run({"order": 10.0}, workers=2, busy_s=0.4, stages=STRAGGLING))
    assert [finding.name for finding in saturated] == ["too-few-workers"]


def test_slow_samples_are_named() -> None:
    slowest = (SlowSample(17, 2.0, 1),)
    (finding,) = find(run({"order": 5.0}, busy_s=0.3, stages=STRAGGLING, slowest_samples=slowest))
    assert "17 (2.0 s)" in finding.evidence


@pytest.mark.parametrize(
    ("moves", "code"),
    [(False, "DataLoader(dataset, seed=0)  # or in_order=False"), (True, "DataLoader(dataset, in_order=False)")],
)
def test_a_seed_is_advised_unless_tasks_already_move_between_workers(moves: bool, code: str) -> None:
    late = run({"order": 5.0}, busy_s=0.3, stages=STRAGGLING, settings={"moves": moves})
    (finding,) = find(late)
    assert finding.code == code
    assert ("seed=" in (finding.fix or "")) is not moves
    assert ("seed=" in late.stats.verdict) is not moves


def test_only_faults_are_reported_for_a_few_batches() -> None:
    few = Stats(Period(5, 10, 9.0, 0.9, waits={"fetch": 8.0}), None, Period(), {**COUNTERS, "failures": 1}, SETTINGS)
    assert [finding.name for finding in find(Run(few, HEADROOM))] == ["failing-samples"]


@pytest.mark.parametrize(
    ("computing", "name", "fix"),
    [(0.1, "too-few-workers", "workers."), (0.95, "slow-samples", "cheaper"), (None, "slow-samples", "cheaper")],
)
def test_more_workers_than_cores_are_advised_only_if_workers_sleep(
    computing: float | None, name: str, fix: str
) -> None:
    """Measured CPU time decides; the reader does not have to."""
    cpu_s = None if computing is None else computing * 0.8
    (finding,) = find(run({"fetch": 10.0}, busy_s=0.8, cpu_s=cpu_s, headroom={"cores": 4}))
    assert finding.name == name
    assert fix in str(finding.fix)
    assert ("(10 % computing)" in finding.evidence) == (computing == 0.1)


@pytest.mark.parametrize("body_s", [0.1, 1e-5])
@pytest.mark.parametrize("computing", [0.1, 1.0])
@pytest.mark.parametrize("workers", [0, 2])
def test_finding_and_verdict_name_the_same_number_of_workers(workers: int, computing: float, body_s: float) -> None:
    setup: dict[str, Any] = {"workers": workers, "busy_s": 0.4, "cpu_s": 0.4 * computing, "body_s": body_s}
    waiting = run({"fetch": 20.0}, **setup, headroom={"cores": 4}, settings={"cores": 4})
    (finding,) = find(waiting)
    assert finding.name == "too-few-workers"
    assert str(finding.fix).removesuffix(".") in waiting.stats.verdict
