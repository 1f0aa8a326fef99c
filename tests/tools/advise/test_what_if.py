"""Predictions: known answers, their limits, and a comparison with real runs."""

from __future__ import annotations

import random
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.errors import BadOption, BadRecording
from feedline.insight.batch_rows import columns_of, row
from feedline.insight.recording import EpochSpan, Recording
from feedline.tools.advise.what_if import Changes, best, grid, predict
from tests.tools.advise.recordings import recording_of

MS = 1_000_000


def regular(
    *,
    workers: int = 1,
    batch_ms: float = 40,
    step_ms: float = 10,
    batches: int = 100,
    cores: int = 8,
    start_ms: int = 0,
    computing: float | None = None,
    queued: float = 0.0,
) -> Recording:
    """Return a recording of a loader whose batches all take the same time, and that training waits for.

    A batch's time is 40 % fetching, 20 % transforming, 30 % collating, 10 % writing; half of the collating is in a
    stage named "pad". Workers compute for the share `computing` of the time, and wait for a core for `queued`.
    """
    busy = int(batch_ms * MS)
    apart = max(busy // workers, int(step_ms * MS)) if workers else busy + int(step_ms * MS)
    stages = {"fetch": busy * 6 // 10, "transform": busy // 5, "collate": busy * 3 // 10, "write": busy // 10}
    rows = []
    for number in range(batches):
        got = (number + 1) * apart + start_ms * MS
        asked = got - apart + int(step_ms * MS)
        moments = {"given": got - busy, "began": got - busy, "finished": got, "came": got, "asked": asked, "got": got}
        known = {"body": int(step_ms * MS) if number else -1, "first": int(number < workers)}
        if computing is not None:
            known |= {"computed": int(busy * computing), "queued": int(busy * queued)}
        worker = number % workers if workers else -1
        rows.append(row(ordinal=number, worker=worker, samples=2, **moments, **stages, **known))
    return Recording(
        settings={"engine": "process", "workers": workers, "prefetch": 2, "in_order": True, "cores": cores},
        epochs=[EpochSpan(0, 0, 0, 0)],
        rows=columns_of(rows),
        stages={"pad": [[number, busy * 15 // 100] for number in range(batches)]},
        counters={"workers": workers},
    )


@pytest.mark.sample(4)
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_without_changes_the_recorded_figures_are_predicted(workers: int) -> None:
    prediction = predict(regular(workers=workers))
    recorded, predicted = prediction.recorded, prediction.predicted
    assert predicted.samples_per_s == pytest.approx(recorded.samples_per_s, rel=0.01)
    assert predicted.stall == pytest.approx(recorded.stall, abs=0.01)
    assert predicted.body.mean == pytest.approx(0.01, rel=0.01)
    assert predicted.busy_s == pytest.approx(recorded.busy_s, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "apart_ms"),
    [
        (Changes(workers=0), 50),
        (Changes(workers=1), 40),
        (Changes(workers=2), 20),
        (Changes(workers=4), 10),
        (Changes(workers=8), 10),
        (Changes(step=3), 30),
        (Changes(step=0.5), 20),
        (Changes(step_s=0.1), 100),
        (Changes(step_s=0.0), 20),
        (Changes(stages={"fetch": 0.5}), 16),
        (Changes(stages={"transform": 0.5}), 18),
        (Changes(stages={"collate": 0.5, "write": 2}), 19),
        (Changes(stages={"pad": 1e-9}), 17),
        (Changes(workers=0, stages={"fetch": 2}), 66),
    ],
)
def test_known_answers(changes: Changes, apart_ms: float) -> None:
    predicted = predict(regular(workers=2), changes).predicted
    assert predicted.batches_per_s == pytest.approx(1000 / apart_ms, rel=0.01)
    assert predicted.samples_per_s == pytest.approx(2 * predicted.batches_per_s)


@pytest.mark.slow
def test_predicted_waits_add_up_to_the_predicted_stall() -> None:
    for changes in (Changes(workers=2), Changes(workers=0), Changes(workers=6, in_order=False)):
        predicted = predict(recording_of(400), changes).predicted
        assert sum(predicted.waits.values()) == pytest.approx(predicted.stall * predicted.seconds)
    waits = predict(regular(), Changes(stages={"transform": 10})).predicted.waits
    assert max(waits, key=waits.__getitem__) == "transform"


@pytest.mark.slow
def test_without_order_a_late_batch_does_not_delay_others() -> None:
    recording = recording_of(400, workers=4, slow=0.05)
    unordered = predict(recording, Changes(in_order=False)).predicted
    assert unordered.samples_per_s > 1.03 * predict(recording).predicted.samples_per_s
    assert "order" not in unordered.waits


def test_the_start_of_an_epoch_is_left_out() -> None:
    recording = regular(workers=2, start_ms=60_000)
    steady = predict(recording).recorded
    assert steady.batches_per_s == pytest.approx(50, rel=0.01)
    assert "start" not in steady.waits
    # Another epoch, after a minute of something else.
    again = {name: column.copy() for name, column in recording.rows.items()}
    for name in ("given", "began", "finished", "came", "asked", "got"):
        again[name] += 120_000 * MS
    again["epoch"] += 1
    again["body"][0] = -1
    both = {name: np.concatenate([column, again[name]]) for name, column in recording.rows.items()}
    recording.rows, recording.epochs = both, [EpochSpan(0, 0, 0, 0), EpochSpan(1, 62_000 * MS, 0, 100)]
    prediction = predict(recording)
    assert prediction.recorded.batches_per_s == pytest.approx(50, rel=0.01)
    assert prediction.predicted.batches_per_s == pytest.approx(50, rel=0.01)


# -- more workers than cores ------------------------------------------------------------------------------------------


def test_workers_that_compute_share_the_cores() -> None:
    recording = regular(workers=2, cores=2)
    computing = predict(recording, Changes(workers=8))
    assert computing.predicted.batches_per_s == pytest.approx(50, rel=0.02)
    assert computing.predicted.busy_s == pytest.approx(0.16, rel=0.05)
    assert "share 2 cores" in " ".join(computing.assumptions)
    waiting = predict(recording, Changes(workers=4, computing=0))
    assert waiting.predicted.batches_per_s == pytest.approx(100, rel=0.02)
    assert not waiting.assumptions


def test_workers_that_shared_cores_while_recorded_are_predicted_to_be_faster_alone() -> None:
    crowded = regular(workers=8, batch_ms=160, step_ms=1, cores=2, batches=200)
    prediction = predict(crowded, Changes(workers=2))
    assert prediction.recorded.batches_per_s == pytest.approx(50, rel=0.02)
    assert prediction.predicted.batches_per_s == pytest.approx(50, rel=0.05)
    assert prediction.predicted.busy_s == pytest.approx(0.04, rel=0.05)


@pytest.mark.slow
def test_workers_whose_cpu_time_was_recorded_need_no_assumption() -> None:
    sleeping = predict(regular(workers=2, cores=2, computing=0.05), Changes(workers=4))
    assert sleeping.predicted.batches_per_s == pytest.approx(100, rel=0.02), "there are enough cores"
    assert sleeping.assumptions == ()
    busy = predict(regular(workers=2, cores=2, computing=1.0), Changes(workers=8))
    assert busy.predicted.batches_per_s == pytest.approx(50, rel=0.02)
    assert busy.assumptions == (
        "Workers compute 100 % of a batch's time, and share 2 cores: their CPU time was measured.",
    )
    given = predict(regular(workers=2, cores=2, computing=1.0), Changes(workers=4, computing=0))
    assert given.predicted.batches_per_s == pytest.approx(100, rel=0.02), "an explicit share has precedence"


def test_workers_that_waited_for_each_others_cores_are_predicted_to_be_faster_alone() -> None:
    """Each of eight computing workers on two cores has a core for a quarter of the time."""
    crowded = regular(workers=8, batch_ms=160, step_ms=1, cores=2, batches=200, computing=0.25, queued=0.75)
    prediction = predict(crowded, Changes(workers=2))
    assert prediction.predicted.busy_s == pytest.approx(0.04, rel=0.05)
    assert prediction.predicted.batches_per_s == pytest.approx(50, rel=0.05)


def test_delays_by_other_programs_are_kept() -> None:
    """Two workers on two cores had no core for half of the time: other programs used them, and will again."""
    prediction = predict(regular(workers=2, cores=2, computing=0.05, queued=0.5), Changes(workers=1))
    assert prediction.predicted.busy_s == pytest.approx(0.04, rel=0.05)


@pytest.mark.slow
def test_batches_cheaper_than_their_hand_over_are_best_made_without_workers() -> None:
    assert best(grid(regular(workers=0, batch_ms=0.3, step_ms=0.03, cores=2, computing=1.0))).workers == 0


@pytest.mark.slow
def test_assumptions_are_listed() -> None:
    crowded = " ".join(predict(regular(cores=2), Changes(workers=8)).assumptions)
    assert "the recording does not contain their CPU time. If they wait for storage" in crowded
    unknown = regular()
    del unknown.settings["cores"]
    assert "does not contain the number of cores" in predict(unknown, Changes(workers=4)).assumptions[0]
    assert "without workers" in predict(regular(workers=0), Changes(workers=2)).assumptions[0]
    assert "The prediction is rough" in " ".join(predict(regular(batch_ms=0.5), Changes(workers=2)).assumptions)
    threads = regular()
    threads.settings["engine"] = "thread"
    assert "lock" in predict(threads, Changes(workers=2)).assumptions[0]


def test_extremely_long_batches_are_cut() -> None:
    recording = regular(workers=2)
    recording.settings["moves"] = True
    recording.rows["began"][50] -= 10**15
    prediction = predict(recording)
    assert "cut to 1,000 times the median" in prediction.assumptions[0]
    assert prediction.predicted.busy_s == pytest.approx(0.04 * 11, rel=0.1), "one in a hundred takes 40 s"


# -- several settings -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_best_setting_has_no_more_workers_than_necessary() -> None:
    predictions = grid(regular(workers=2, batch_ms=40, step_ms=11))
    assert {one.workers for one in predictions} == {0, 1, 2, 4, 8}
    assert {(one.prefetch, one.in_order) for one in predictions} == {(2, True), (8, True), (2, False)}
    chosen = best(predictions)
    assert (chosen.workers, chosen.prefetch) == (4, 2)


@pytest.mark.slow
def test_very_cheap_batches_are_best_made_without_workers() -> None:
    assert best(grid(regular(workers=0, batch_ms=0.05, step_ms=0.01))).workers == 0


@pytest.mark.slow
def test_the_grid_contains_the_recorded_setting() -> None:
    recording = regular(workers=3)
    recording.settings["prefetch"] = 5
    (found,) = [one for one in grid(recording) if one.is_recorded]
    assert (found.workers, found.prefetch, found.in_order) == (3, 5, True)


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False])
def test_the_best_setting_keeps_the_order_of_the_run(in_order: bool) -> None:
    recording = recording_of(400, workers=4, slow=0.05)
    recording.settings["in_order"] = in_order
    assert best(grid(recording)).in_order is in_order


def test_a_few_simulated_batches_represent_a_long_run() -> None:
    """The second half of the run is twice as slow as the first."""
    fast, slow = (regular(batches=500, batch_ms=batch_ms, step_ms=1) for batch_ms in (20, 40))
    for name in ("given", "began", "finished", "came", "asked", "got"):
        slow.rows[name] += fast.rows["got"][-1]
    slow.rows["ordinal"] += 500
    slow.rows["first"][:] = 0
    fast.rows = {name: np.concatenate([column, slow.rows[name]]) for name, column in fast.rows.items()}
    few = predict(fast, batches=100)
    assert few.predicted.batches_per_s == pytest.approx(1000 / 30, rel=0.02)
    assert few.predicted.batches == 100


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": -1}, "workers=-1"),
        ({"workers": 10**6}, "up to 1024"),
        ({"prefetch": 0}, "at least 1"),
        ({"stages": {"fetch": 0.0}}, "fetch times 0"),
        ({"stages": {"fetch": -1.0}}, "above 0"),
        ({"stages": {"fetch": float("nan")}}, "above 0"),
        ({"step": 0.0}, "step times 0"),
        ({"step_s": -0.1}, "not a valid time"),
        ({"computing": 2.0}, "from 0 to 1"),
    ],
)
# Any: arguments of `Changes`.
def test_rejects_impossible_changes(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        Changes(**wrong)


def test_rejects_stages_that_were_not_recorded() -> None:
    with pytest.raises(
        BadOption, match=r"only of fetch, transform, collate, write, pad.*feedline\.stage\(\"decode\"\)"
    ):
        predict(regular(), Changes(stages={"decode": 0.5}))


def test_steps_without_duration_cannot_be_scaled() -> None:
    recording = regular(step_ms=0)
    assert predict(recording).predicted.stall == pytest.approx(1.0)
    with pytest.raises(BadOption, match="--step 50ms"):
        predict(recording, Changes(step=2))
    assert predict(recording, Changes(step_s=0.08)).predicted.batches_per_s == pytest.approx(12.5, rel=0.01)


@pytest.mark.parametrize("recording", [Recording(), regular(batches=8)], ids=["nothing", "few"])
def test_rejects_recordings_that_are_too_short(recording: Recording) -> None:
    with pytest.raises(BadRecording, match="Record a longer run"):
        predict(recording)


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
def recorded(
    dataset: Sleeper, path: Path, *, step_s: float, workers: int, engine: Any, in_order: bool = True
) -> Recording:
    engine = engine if workers else "inline"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on a busy machine, workers may seem stuck or late
        loader = feedline.Loader(dataset, 1, workers=workers, engine=engine, in_order=in_order)
        with feedline.record(loader, path):
            for _ in loader:
                time.sleep(step_s)
    return Recording.load(path)


def compare(kind: str, path: Path, before: int, after: int, *, typical_s: float, samples: int, **more: Any) -> float:
    """Return the predicted rate as a share of the real one: the median of three pairs of runs, more if far off."""
    dataset, shares = Sleeper(kind, typical_s, samples), list[float]()
    while len(shares) < 3 or (len(shares) < 9 and abs(statistics.median(shares) - 1) > 0.1):
        first = recorded(dataset, path, step_s=0.4 * typical_s, workers=before, **more)
        real = predict(recorded(dataset, path, step_s=0.4 * typical_s, workers=after, **more)).recorded
        predicted = predict(first, Changes(workers=after)).predicted
        shares.append(predicted.samples_per_s / real.samples_per_s)
    return statistics.median(shares)


@pytest.mark.real_time
def test_predictions_match_a_real_run_with_more_workers(tmp_path: Path) -> None:
    share = compare("fixed", tmp_path / "run.json", 1, 2, typical_s=0.02, samples=40, engine="thread")
    assert share == pytest.approx(1, abs=0.1)


@pytest.mark.real_time
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 4), (2, 3), (2, 0)])
@pytest.mark.parametrize("kind", ["fixed", "spread", "stragglers"])
def test_predictions_match_real_runs_with_other_numbers_of_workers(
    kind: str, before: int, after: int, tmp_path: Path
) -> None:
    share = compare(kind, tmp_path / "run.json", before, after, typical_s=0.005, samples=400, engine="process")
    assert share == pytest.approx(1, abs=0.15 if kind == "stragglers" else 0.1)


@pytest.mark.real_time
def test_predictions_match_real_runs_without_order(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"typical_s": 0.005, "samples": 400, "engine": "process", "in_order": False}
    assert compare("stragglers", tmp_path / "run.json", 2, 4, **settings) == pytest.approx(1, abs=0.15)
