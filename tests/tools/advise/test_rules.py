"""From measurements to findings: what is reported, and what is not, however busy the machine was."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.tools.advise.diagnosis import as_dict, diagnose, summary
from feedline.tools.advise.finding import NOT_SURE, Finding
from feedline.tools.measure.measured import (
    LEAST_SAMPLES,
    Faster,
    FloatField,
    Held,
    Making,
    Noise,
    OpenHandle,
    Reopened,
    SlowImages,
    SlowRows,
    State,
    Threads,
)
from tests.tools.advise.measurements import HEADROOM, MIB, batch, loader, measured, samples

HANDLE = OpenHandle("dataset.file", "an open file (io.FileIO)", "All processes share it.", "Keep the path.")
LAMBDA = State(not_picklable="dataset.f is a lambda", pickle_advice="Define it at the top level.")
HELD = Held("dataset.files", 1_000_000, 100 * MIB, 20 * MIB)
PIXELS = FloatField("image", "float32", True, sample_bytes=600_000, convert_s=5e-4, carried_s=0.0)
OBJECTS = {
    "bytes": MIB,
    "object_bytes": MIB,
    "sent_s": 0.06,
    "carry_s": 0.06,
    "faster": Faster("Objects", "Join them."),
}
BY_HAND = {"collate_s": 0.064, "carry_s": 0.064, "faster": Faster("By hand", "Leave it out.", "...", 0.016)}
PANDAS = SlowRows("pandas", "a.csv", 9.5e-4, "CSVDataset", "feedline.datasets.CSVDataset('a.csv')", row_s=1e-5)
CHUNKED = SlowRows("h5py", "a.h5", 9e-4, "HDF5Dataset", "...", row_s=1e-4, chunks="those of 'x' are large")
LARGE = SlowImages("Pillow", "/data/0.jpg", pixels=4e6, size=(200, 250), library_s=9e-4, image_s=1.5e-4)
REOPENED = Reopened("/data/a.npy", 200, 4 << 20, 8e-4, True, "Map it.", "...")
THREADS, INLINE, PROCESSES = loader(engine="thread"), loader(engine="inline", workers=0), loader()
SLEEPY = {"samples": samples(cpu_share=0.05), "threads": Threads({1: 100.0, 2: 200.0, 8: 780.0}, 2.0)}
ASLEEP = {"samples": samples(cpu_share=0.05), "threads": Threads({1: 100.0, 2: 100.0, 8: 100.0}, 1.0)}
LOCKED = Threads({1: 1000.0, 2: 1000.0}, 1.0)
LATE = samples(seconds=(1e-3,) * 190 + (0.05,) * 10, repeated=(("1", 0.05), ("2", 0.05)))
LENGTHS = samples(lengths=tuple(np.random.default_rng(0).integers(1, 1000, 640).tolist()))
SORTED = samples(sorted_labels="y")

RULES: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"loader": PROCESSES}, ""),
    ({"loader": INLINE}, ""),
    # failures
    ({"samples": samples(failed=3, failure="sample 3:\n...")}, "failing-samples!"),
    ({"loader": loader(failure="KeyError: 'z'")}, "failing-loader!"),
    ({"loader": loader(failure="..."), "batch": batch(not_picklable="a generator")}, "unpicklable!"),
    ({"ended": "It hung", "ended_in": "loader"}, "failing-loader!"),
    ({"ended": "It hung", "ended_in": "batch"}, "failing-loader"),
    ({"ended": "It hung", "ended_in": "threads"}, "fails-on-threads"),
    ({"threads": Threads(failure="..."), "loader": loader(engine="thread", failure="...")}, "fails-on-threads!"),
    ({"threads": Threads(failure="...")}, ""),
    # what workers share
    ({"state": State(handles=(HANDLE,))}, "shared-handle!"),
    ({"state": State(handles=(HANDLE,)), "loader": INLINE}, ""),
    ({"state": State(thread_handles=(HANDLE,))}, ""),
    ({"state": State(thread_handles=(HANDLE,)), "loader": THREADS}, "shared-handle!"),
    ({"state": replace(LAMBDA, handles=(HANDLE,))}, "shared-handle!"),  # it explains why pickling fails
    ({"state": State(own_generators=("dataset.rng",), global_generators=("random",))}, "copied-random!"),
    ({"state": State(own_generators=("dataset.rng",)), "loader": INLINE}, ""),
    ({"state": State(global_generators=("random",))}, "copied-random"),
    ({"state": State(global_generators=("random",)), "loader": PROCESSES}, ""),  # each process has its own seed
    ({"state": LAMBDA}, "unpicklable"),
    ({"state": LAMBDA, "headroom": replace(HEADROOM, start_method="spawn")}, "unpicklable!"),
    ({"state": LAMBDA, "loader": THREADS}, ""),
    ({"batch": batch(not_picklable="a generator")}, "unpicklable!"),
    # samples that are wrong together
    ({"samples": samples(reused="x")}, "reused-samples!"),
    ({"samples": SORTED, "loader": loader(is_sequential=True)}, "sorted-labels"),
    ({"samples": SORTED, "loader": loader(is_sequential=True, batch_size=1)}, ""),
    ({"samples": SORTED}, ""),
    # time
    (SLEEPY, "waiting"),
    ({**SLEEPY, "loader": loader(workers=8)}, ""),
    ({**SLEEPY, "making": Making("Mine", 1000, is_async=True)}, ""),
    ({**ASLEEP, "state": State(lock="dataset.lock")}, "serialised"),
    ({**ASLEEP, "state": State(lock="dataset.lock"), "loader": THREADS}, "serialised!"),
    (ASLEEP, ""),  # no lock is known
    ({**SLEEPY, "state": State(lock="dataset.lock")}, "waiting"),  # they do not wait for it
    ({"threads": LOCKED}, "serialised"),
    ({"threads": LOCKED, "loader": THREADS}, "serialised!"),
    ({"threads": replace(LOCKED, speedup=None)}, ""),  # a library's own threads use the cores
    # what samples read: the interpreter's lock comes later
    ({"samples": samples(rows=PANDAS), "threads": LOCKED}, "slow-source"),
    ({"samples": samples(rows=replace(PANDAS, row_s=0.9e-3))}, ""),
    ({"samples": samples(rows=PANDAS, seconds=(5e-5,) * 200)}, ""),
    ({"samples": samples(rows=replace(CHUNKED, row_s=0.9e-3))}, "slow-source"),  # no source helps: pack it
    ({"samples": samples(images=LARGE)}, "slow-source"),
    ({"samples": samples(images=replace(LARGE, image_s=8e-4))}, ""),
    ({"samples": samples(reopened=(REOPENED,)), "threads": LOCKED}, "reopened-file"),
    ({"samples": samples(reopened=(replace(REOPENED, again_s=1e-6),))}, ""),
    ({"threads": LOCKED, "samples": samples(seconds=(1e-5,) * 200)}, ""),
    ({"samples": LATE}, "stragglers"),
    ({"samples": replace(LATE, repeated=())}, ""),
    ({"samples": LENGTHS, "batch": batch(bytes=64 * MIB)}, "padding"),
    ({"samples": LENGTHS}, ""),  # the collate function pads nothing
    ({"samples": samples(lengths=(100,) * 320 + (101,) * 320)}, ""),
    ({"batch": batch(floats=(PIXELS,))}, "floats"),
    ({"batch": batch(floats=(replace(PIXELS, sample_bytes=1000),))}, ""),
    ({"batch": batch(**OBJECTS)}, "slow-collate"),
    ({"batch": batch(**{**OBJECTS, "sent_s": 1e-3})}, ""),
    ({"batch": batch(**BY_HAND)}, "slow-collate"),
    # workers
    ({"state": State(held=(HELD,))}, "copied-objects"),
    ({"state": State(held=(replace(HELD, bytes=2 << 30),))}, "copied-objects!"),
    ({"state": State(held=(replace(HELD, bytes=MIB),))}, ""),
    ({"state": State(held=(HELD,)), "loader": THREADS}, ""),
    ({"loader": loader(start_s=12.5)}, "workers-restarted"),
    ({"loader": loader(start_s=0.01)}, ""),
    ({"loader": loader(workers=10)}, "too-many-workers"),
    ({"loader": loader(workers=9)}, ""),
    ({"loader": loader(workers=3)}, "too-few-workers"),
    ({"loader": loader(workers=0, engine="inline"), "headroom": replace(HEADROOM, cores=1)}, ""),
    ({"loader": loader(workers=16), "samples": samples(cpu_share=0.5), "threads": Threads()}, ""),
]


def found(**changes: Any) -> Finding:
    """Return the only finding."""
    (finding,) = diagnose(measured(**changes))
    return finding


@pytest.mark.parametrize(("changes", "expected"), RULES)
def test_each_problem_is_named_and_no_other(changes: dict[str, Any], expected: str) -> None:
    """An exclamation mark is a serious finding."""
    if changes.get("loader") == INLINE and "samples" not in changes:
        changes = {**changes, "headroom": replace(HEADROOM, cores=1)}  # where no workers are enough
    named = diagnose(measured(**changes))
    assert [finding.name + "!" * finding.is_serious for finding in named] == [expected] * bool(expected)


def test_gains_compare_the_pipeline_with_and_without_the_problem() -> None:
    assert found(**SLEEPY).gain == pytest.approx(7.7, rel=0.05)
    assert found(batch=batch(**BY_HAND)).gain == pytest.approx((32 + 64) / (32 + 16), rel=0.05)
    assert found(batch=batch(floats=(replace(PIXELS, carried_s=1e-3),), carry_s=0.032)).gain == pytest.approx(4.0)
    rows = samples(rows=PANDAS)
    assert found(samples=rows, batch=None).gain == pytest.approx(1e-3 / (0.05e-3 + 1e-5), rel=0.01)
    assert found(samples=samples(rows=CHUNKED), batch=None).gain == 5.0
    assert found(samples=samples(rows=replace(CHUNKED, row_s=0.9e-3))).gain is None


def test_no_gain_is_promised_from_few_samples() -> None:
    for count, gain in ((LEAST_SAMPLES - 1, None), (LEAST_SAMPLES, 5.0)):
        setup = measured(samples=samples(seconds=(1e-3,) * count, rows=CHUNKED), batch=None)
        assert [finding.gain for finding in diagnose(setup)] == [gain]
        assert ("fewer than 20 samples" in "\n".join(summary(setup))) == (gain is None)


def test_the_evidence_names_what_was_measured() -> None:
    held = found(**ASLEEP, state=State(lock="dataset.lock"))
    assert "dataset.lock for 100%" in held.problem
    copies = found(state=State(held=(HELD,)))
    assert "800.0 MiB in 8 workers; shared, it takes 20.0 MiB once" in copies.evidence
    assert copies.code == "# at the end of __init__:\nself.files = feedline.share(self.files)"
    late = found(samples=LATE)
    assert "Slow again when repeated: 1, 2." in late.evidence
    rows = found(samples=samples(rows=replace(PANDAS, unused=30)))
    assert "there are 30 rows more than samples" in rows.evidence
    unpacked = found(samples=samples(rows=replace(CHUNKED, row_s=0.9e-3)))
    assert unpacked.code == "feedline pack 'a.h5' OUT.h5", "no source helps with such chunks"
    large = found(samples=samples(images=replace(LARGE, kept=1 / 12)))
    assert "80 times the pixels" in large.problem


def test_the_summary_contains_the_measurements() -> None:
    setup = measured(**SLEEPY)
    text = "\n".join(summary(setup))
    for part in ("Mine: 100,000 samples", "p99", "computing", "A batch of 32", "8 threads made 7.80 times"):
        assert part in text
    figures = json.loads(json.dumps(as_dict(setup)))
    assert (figures["dataset"], figures["p50_s"]) == ("Mine", 1e-3)


# -- noise -------------------------------------------------------------------------------------------------------------

TIMED: dict[str, dict[str, Any]] = {
    "": {},
    "slow-collate": {"batch": batch(**{**BY_HAND, "collate_s": 0.5})},
    "waiting": SLEEPY,
    "stragglers": {"samples": samples(seconds=(1e-3,) * 180 + (0.2,) * 20, repeated=(("1", 0.2), ("2", 0.2)))},
    "workers-restarted": {"loader": loader(start_s=12.5)},
    "too-many-workers": {"loader": loader(workers=32)},
}


def disturbed(part: Any, noise: float, factors: Iterator[float]) -> Any:
    """Return measurements with an error of at most this share in every time."""

    def off(seconds: float) -> float:
        return float(seconds * (1 + noise) ** next(factors))

    times: dict[str, Any] = {
        name: off(value) for name, value in vars(part).items() if name.endswith("_s") and isinstance(value, float)
    }
    return replace(part, **times, **({"seconds": tuple(map(off, part.seconds))} if hasattr(part, "seconds") else {}))


@pytest.mark.parametrize("name", TIMED)
@given(noise=st.floats(0.0, 0.6), factors=st.lists(st.floats(-0.5, 0.5), min_size=7, max_size=31))
def test_noise_neither_causes_findings_nor_hides_those_that_clearly_exceed_it(
    name: str, noise: float, factors: list[float]
) -> None:
    setup, more = measured(**TIMED[name]), itertools.cycle(factors)
    for part in ("samples", "batch", "loader"):
        if getattr(setup, part) is not None:
            setattr(setup, part, disturbed(getattr(setup, part), noise, more))
    setup.noise = Noise(spread=noise)
    assert [finding.name for finding in diagnose(setup)] == [name] * bool(name)


def test_findings_near_a_threshold_need_a_quiet_machine() -> None:
    near = measured(batch=batch(collate_s=0.015, faster=Faster("By hand", "Stack them.")))
    assert [finding.name for finding in diagnose(near)] == ["slow-collate"]
    for noise in (Noise(spread=0.3), Noise(stolen=0.3)):
        near.noise = noise
        assert [finding.name for finding in diagnose(near)] == [NOT_SURE]
        assert "busy" in "\n".join(summary(near))
