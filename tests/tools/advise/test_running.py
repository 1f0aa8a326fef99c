"""Findings about a run, from its statistics: each problem is named, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.errors import BadOption, BadRecording
from feedline.insight.histogram import Spread
from feedline.insight.recording import Recording
from feedline.insight.stats import Period, Stats
from feedline.tools.advise.finding import Findings
from feedline.tools.advise.running import find, of_recording
from tests.tools.advise.measurements import MIB
from tests.tools.advise.recordings import recording_of

SETTINGS = {"engine": "process", "persistent": True, "cores": 8, "memory_limit": 16 << 30}
COUNTERS = {"workers": 4, "batches": 100, "faults": {}}


def steady(seconds: float) -> Spread:
    return Spread(100, seconds, seconds, seconds, seconds)


def stats_of(
    waits: dict[str, float] | None = None, *, workers: int = 4, body_s: float = 0.1, busy_s: float = 0.36, **rest: Any
) -> Stats:
    """Return the statistics of a hundred batches. By default the run is sound: four workers, busy most of the time."""
    waits = waits or {}
    seconds = 100 * body_s + sum(waits.values())
    used = [100 * busy_s / workers / seconds] * workers if workers else []
    period = Period(
        100, 3200, seconds, (sum(waits.values()) - waits.get("start", 0.0)) / seconds, waits=waits,
        worker_utilisation=used, body=steady(body_s), data_bytes=100 * MIB,
        stages={"fetch": steady(busy_s), **rest.pop("stages", {})}, cpu_s=rest.pop("cpu_s", None),
    )  # fmt: skip
    counters = {**COUNTERS, "workers": workers, **rest.pop("counters", {})}
    settings = {**SETTINGS, "engine": "process" if workers else "inline", **rest.pop("settings", {})}
    return Stats(period, period if rest.pop("is_second", False) else None, period, counters, settings, **rest)


def found(waits: dict[str, float] | None = None, *, growth: float = 0.0, **rest: Any) -> Findings:
    return find(stats_of(waits, **rest), growth)


def test_a_sound_run_has_no_finding() -> None:
    assert found() == []
    assert found({"fetch": 0.1}, is_second=True) == []
    assert found(workers=0, busy_s=0.001, waits={"fetch": 0.1}) == []


STRAGGLING = {"fetch": Spread(100, 0.2, 0.1, 0.12, 2.0)}


PROBLEMS: list[tuple[dict[str, Any], str, float | None]] = [
    ({"waits": {"fetch": 10.0}, "workers": 2, "busy_s": 0.4, "cpu_s": 0.04}, "too-few-workers", 2.0),
    ({"waits": {"fetch": 30.0}, "workers": 0, "busy_s": 0.3, "cpu_s": 0.03}, "too-few-workers", 4.0),
    ({"waits": {"order": 10.0}, "workers": 2, "busy_s": 0.4, "stages": STRAGGLING}, "too-few-workers", None),
    # What samples that compute gain from more workers depends on memory, locks and other programs: tune measures it.
    ({"waits": {"fetch": 10.0}, "workers": 2, "busy_s": 0.4, "cpu_s": 0.4}, "too-few-workers", None),
    # More workers than cores help only if they sleep.
    ({"waits": {"fetch": 10.0}, "busy_s": 0.8, "settings": {"cores": 4}}, "slow-samples", None),
    ({"waits": {"fetch": 10.0}, "busy_s": 0.8, "cpu_s": 0.08, "settings": {"cores": 4}}, "too-few-workers", 2.0),
    ({"waits": {"fetch": 10.0}, "busy_s": 0.8, "settings": {"local_ranks": 2}}, "slow-samples", None),
    ({"busy_s": 0.08}, "too-many-workers", None),
    ({"waits": {"queue": 0.1}, "workers": 6, "busy_s": 3e-4, "body_s": 1e-3, "cpu_s": 3e-4}, "too-many-workers", None),
    ({"waits": {"order": 5.0}, "busy_s": 0.3, "stages": STRAGGLING}, "stragglers", 1.5),
    ({"waits": {"start": 10.0}, "is_second": True, "settings": {"persistent": False}}, "workers-restarted", 2.0),
    ({"waits": {"collate": 10.0}, "busy_s": 0.8, "stages": {"collate": steady(0.5)}}, "slow-collate", 2.0),
    ({"waits": {"slot": 10.0}}, "held-batches", 2.0),
    ({"counters": {"overflowed_batches": 60}}, "held-batches", None),
    ({"waits": {"device": 10.0}}, "late-copies", 2.0),
    ({"waits": {"deliver": 10.0}}, "slow-delivery", 2.0),
    ({"growth": 30.0 * MIB}, "memory-growth", None),
    ({"counters": {"recycled_workers": 3}}, "memory-growth", None),
    ({"counters": {"faults": {"skip": 3}}}, "failing-samples", None),
    ({"counters": {"failures": 1}}, "failing-samples", None),
    ({"counters": {"restarted_workers": 2}}, "dying-workers", None),
]


@pytest.mark.parametrize(("setup", "name", "gain"), PROBLEMS)
def test_the_problem_is_named_and_no_other(setup: dict[str, Any], name: str, gain: float | None) -> None:
    (finding,) = found(**setup)
    assert finding.name == name
    assert finding.gain == (None if gain is None else pytest.approx(gain, rel=0.1))
    assert finding.fix


def test_findings_without_a_gain_are_not_reported() -> None:
    assert found({"collate": 0.01}, stages={"collate": steady(0.3)}) == [], "training does not wait"
    assert found({"start": 10.0}, is_second=True) == [], "workers are persistent: this was the first of several epochs"


def test_only_faults_are_reported_for_a_few_batches() -> None:
    few = Stats(Period(5, 10, 9.0, 0.9, waits={"fetch": 8.0}), None, Period(), {**COUNTERS, "failures": 1}, SETTINGS)
    assert [finding.name for finding in find(few)] == ["failing-samples"]


@pytest.mark.parametrize(("workers", "computing"), [(0, 1.0), (2, 0.1)])
def test_finding_and_verdict_name_the_same_number_of_workers(workers: int, computing: float) -> None:
    setup: dict[str, Any] = {"workers": workers, "busy_s": 0.4, "cpu_s": 0.4 * computing}
    waiting = stats_of({"fetch": 20.0}, **setup, settings={"cores": 4})
    (finding,) = find(waiting)
    assert finding.name == "too-few-workers"
    assert str(finding.fix) in waiting.verdict


# -- loaders and recordings --------------------------------------------------------------------------------------------


def test_a_running_loader_and_its_recording_get_the_same_findings(tmp_path: Path) -> None:
    loader = feedline.Loader(list(range(320)), 4, workers=1, persistent=True)
    iterator = iter(loader)
    next(iterator)
    assert feedline.doctor(loader) == [], "too few batches to say anything"
    list(iterator)
    with feedline.record(loader, tmp_path / "run.json.gz"):
        list(loader)
        live = feedline.doctor(loader)
    loader.close()
    later = feedline.doctor(tmp_path / "run.json.gz")
    assert [finding.name for finding in later] == [finding.name for finding in live]
    assert feedline.doctor(Recording.load(tmp_path / "run.json.gz")) == later


def test_a_memory_leak_is_found_in_a_recording() -> None:
    recording = recording_of(400, make_ms=10, step_ms=12)
    recording.system["worker_memory"] = [5e8 + 4e6 * place for place in range(50)]
    (leak,) = [finding for finding in of_recording(recording) if finding.name == "memory-growth"]
    assert "MiB in all" in leak.evidence
    recording.system["worker_memory"] = [5e8] * 50
    assert "memory-growth" not in {finding.name for finding in of_recording(recording)}


def test_rejects_arguments_that_are_not_runs() -> None:
    with pytest.raises(BadOption, match="neither a feedline loader"):
        feedline.doctor([1, 2])  # type: ignore[arg-type]  # a user's mistake
    with pytest.raises(BadOption, match="no dataset in a recording"):
        feedline.doctor(recording_of(20), seconds=1.0)
    with pytest.raises(BadRecording, match="cannot be read"):
        feedline.doctor("not-there.json")
