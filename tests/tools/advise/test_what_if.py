"""Predictions: known answers, their limits, and a comparison with real runs."""

from __future__ import annotations

import random
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.errors import BadRecording
from feedline.insight.batch_rows import columns_of, row
from feedline.insight.recording import EpochSpan, Recording
from feedline.tools.advise.what_if import RecordedRun
from tests.tools.advise.recordings import recording_of

MS = 1_000_000


def regular(
    *,
    workers: int = 1,
    batch_ms: float = 40,
    step_ms: float = 10,
    batches: int = 100,
    cores: int = 8,
    computing: float | None = None,
    queued: float = 0.0,
) -> Recording:
    """Return a recording of a loader whose batches all take the same time, and that training waits for.

    Workers compute for the share `computing` of the time, and wait for a core for `queued`.
    """
    busy = int(batch_ms * MS)
    apart = max(busy // workers, int(step_ms * MS)) if workers else busy + int(step_ms * MS)
    rows = []
    for number in range(batches):
        got = (number + 1) * apart
        asked = got - apart + int(step_ms * MS)
        moments = {"given": got - busy, "began": got - busy, "finished": got, "came": got, "asked": asked, "got": got}
        known = {"body": int(step_ms * MS) if number else -1, "first": int(number < workers)}
        if computing is not None:
            known |= {"computed": int(busy * computing), "queued": int(busy * queued)}
        worker = number % workers if workers else -1
        rows.append(row(ordinal=number, worker=worker, samples=2, fetch=busy, **moments, **known))
    return Recording(
        settings={"engine": "process", "workers": workers, "prefetch": 2, "in_order": True, "cores": cores},
        epochs=[EpochSpan(0, 0, 0, 0)],
        rows=columns_of(rows),
        counters={"workers": workers},
    )


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_without_changes_the_recorded_figures_are_predicted(workers: int) -> None:
    run = RecordedRun(regular(workers=workers))
    predicted = run.predict()
    assert predicted.is_recorded
    assert predicted.samples_per_s == pytest.approx(run.samples_per_s, rel=0.01)
    assert predicted.stall == pytest.approx(run.stall, abs=0.01)
    assert predicted.busy == pytest.approx(1.0 if workers else 0.0, abs=0.03)


@pytest.mark.parametrize(
    ("changes", "apart_ms"),
    [
        ({"workers": 0}, 50),
        ({"workers": 4}, 10),
        ({"workers": 8, "speedup": "training step"}, 5),
        ({"speedup": "training step"}, 20),
        ({"speedup": "batches"}, 10),
    ],
)
# Any: arguments of `predict`.
def test_known_answers(changes: dict[str, Any], apart_ms: float) -> None:
    assert RecordedRun(regular(workers=2)).predict(**changes).samples_per_s == pytest.approx(2000 / apart_ms, rel=0.01)


def test_without_order_a_late_batch_does_not_delay_others() -> None:
    run = RecordedRun(recording_of(400, workers=4, slow=0.05))
    assert run.predict(in_order=False).samples_per_s > 1.03 * run.predict().samples_per_s


# -- more workers than cores ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("recorded", "workers", "batches_per_s"),
    [
        ({"workers": 2, "cores": 2}, 8, 50),  # they compute, as far as is known
        ({"workers": 2, "cores": 2, "computing": 0.05}, 4, 100),
        # Workers that shared cores while they were recorded are faster alone.
        ({"workers": 8, "cores": 2, "batch_ms": 160, "step_ms": 1, "batches": 200}, 2, 50),
        # Other programs used the cores for half of the time, and will again.
        ({"workers": 2, "cores": 2, "computing": 0.05, "queued": 0.5}, 1, 25),
    ],
)
# Any: arguments of `regular`.
def test_workers_that_compute_share_the_cores(recorded: dict[str, Any], workers: int, batches_per_s: float) -> None:
    predicted = RecordedRun(regular(**recorded)).predict(workers=workers)
    assert predicted.samples_per_s == pytest.approx(2 * batches_per_s, rel=0.05)


def test_extremely_long_batches_are_cut() -> None:
    recording = regular(workers=2)
    recording.settings["moves"] = True
    recording.rows["began"][50] -= 10**15
    run = RecordedRun(recording)
    predicted = run.predict()
    assert "cut to 1,000 times the median" in " ".join(run.assumptions([predicted]))
    assert predicted.samples_per_s == pytest.approx(2 * 100 / 40, rel=0.1), "one in a hundred takes 40 s"


def test_assumptions_are_listed() -> None:
    def assumed(recording: Recording, workers: int) -> str:
        run = RecordedRun(recording)
        return " ".join(run.assumptions([run.predict(workers=workers)]))

    assert "share 2 cores" in assumed(regular(cores=2), 8)
    assert "as measured" in assumed(regular(workers=2, cores=2, computing=1.0), 8)
    assert assumed(regular(workers=2, cores=2, computing=0.05), 4) == "", "there are enough cores"
    assert "without workers" in assumed(regular(workers=0), 2)
    assert "rough" in assumed(regular(batch_ms=0.5), 2)


# -- several settings -------------------------------------------------------------------------------------------------


def test_the_grid_has_the_recorded_setting_and_the_best_has_no_more_workers_than_necessary() -> None:
    run = RecordedRun(regular(workers=3, batch_ms=40, step_ms=11))
    grid = run.grid()
    assert {one.workers for one in grid} == {0, 1, 2, 3, 4, 8}
    assert {(one.prefetch, one.in_order) for one in grid} == {(2, True), (8, True), (2, False)}
    assert [(one.workers, one.prefetch, one.in_order) for one in grid if one.is_recorded] == [(3, 2, True)]
    assert (run.best(grid).workers, run.best(grid).prefetch) == (4, 2)


@pytest.mark.parametrize("recording", [Recording(), regular(batches=8)], ids=["nothing", "few"])
def test_rejects_recordings_that_are_too_short(recording: Recording) -> None:
    with pytest.raises(BadRecording, match="Record a longer run"):
        RecordedRun(recording)


@pytest.mark.parametrize(("name", "value"), [("workers", 10**6), ("prefetch", -1)])
def test_rejects_impossible_settings(name: str, value: int) -> None:
    recording = regular()
    recording.settings[name] = value
    with pytest.raises(BadRecording, match=str(value)):
        RecordedRun(recording)


# -- real runs --------------------------------------------------------------------------------------------------------


class Sleeper:
    """Samples that take some time without using a core."""

    def __init__(self, kind: str, typical_s: float, samples: int) -> None:
        dice = random.Random(3)
        self.seconds = [typical_s] * samples
        if kind == "spread":
            self.seconds = [typical_s * dice.uniform(0.4, 2.4) for _ in self.seconds]
        elif kind == "stragglers":
            self.seconds = [typical_s * (20 if number % 100 == 50 else 1) for number in range(samples)]

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> int:
        time.sleep(self.seconds[index])
        return index


# Any: the engine, as loaders have it.
def recorded(dataset: Sleeper, path: Path, *, workers: int, engine: Any, in_order: bool = True) -> RecordedRun:
    engine = engine if workers else "inline"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a busy machine, workers may seem stuck or late
        loader = feedline.Loader(dataset, 1, workers=workers, engine=engine, in_order=in_order)
        with feedline.record(loader, path):
            for _ in loader:
                time.sleep(0.4 * dataset.seconds[0])
    return RecordedRun(Recording.load(path))


@pytest.mark.real_time
@pytest.mark.parametrize(
    ("kind", "before", "after", "settings"),
    [
        ("fixed", 1, 2, {"engine": "thread"}),
        ("stragglers", 2, 4, {"in_order": False}),
        *(
            (kind, before, after, {})
            for kind in ("fixed", "spread", "stragglers")
            for before, after in ((1, 4), (2, 0))
        ),
    ],
)
# Any: settings of the loader.
def test_predictions_match_real_runs(kind: str, before: int, after: int, settings: Any, tmp_path: Path) -> None:
    """The median of three pairs of runs, of more if far off."""
    dataset, shares = Sleeper(kind, 0.005, 400), list[float]()
    settings = {"engine": "process", **settings}
    while len(shares) < 3 or (len(shares) < 9 and abs(statistics.median(shares) - 1) > 0.1):
        first = recorded(dataset, tmp_path / "run.json", workers=before, **settings)
        real = recorded(dataset, tmp_path / "run.json", workers=after, **settings)
        shares.append(first.predict(workers=after).samples_per_s / real.samples_per_s)
    assert statistics.median(shares) == pytest.approx(1, abs=0.15 if kind == "stragglers" else 0.1)
