"""From measurements to findings: what is reported, and what is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from feedline.tools.advise.diagnosis import diagnose
from feedline.tools.advise.finding import Finding
from feedline.tools.measure.measured import FloatField, Held, Lock, Making, Measured, OpenHandle, State, Threads
from tests.tools.advise.measurements import HEADROOM, MIB, batch, loader, measured, samples

HANDLE = OpenHandle("dataset.file", "an open file (io.FileIO)", "All processes share it.", "Keep the path.")
LAMBDA = State(not_picklable="dataset.f is a lambda", pickle_advice="Define it at the top level.")
HELD = Held("dataset.files", 1_000_000, 100 * MIB, 20 * MIB)
PIXELS = FloatField("image", "float32", True, convert_s=5e-4, sample_bytes=600_000)
OBJECTS = {"bytes": MIB, "object_bytes": MIB, "objects": "words (list)", "sent_s": 0.06, "carry_s": 0.06}
THREADS, INLINE, PROCESSES = loader(engine="thread"), loader(engine="inline", workers=0), loader()
SLEEPY = {"samples": samples(cpu_share=0.05), "threads": Threads({1: 100.0, 2: 200.0, 8: 780.0})}
LOCKED = Threads({1: 1000.0, 2: 1000.0})
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
    ({"loader": loader(failure="..."), "samples": samples(failed=3)}, "failing-samples!"),
    ({"loader": loader(failure="..."), "state": State(handles=(HANDLE,))}, "shared-handle!"),
    ({"loader": loader(failure="..."), "batch": batch(not_picklable="a generator")}, "unpicklable!"),
    ({"ended": "It hung", "ended_in": "loader"}, "failing-loader!"),
    ({"ended": "It hung", "ended_in": "batch"}, "failing-loader"),
    ({"ended": "It hung", "ended_in": "threads"}, "fails-on-threads"),
    ({"ended": "It hung", "ended_in": "threads", "loader": THREADS}, "fails-on-threads!"),
    ({"threads": Threads({}, failure="..."), "loader": loader(engine="thread", failure="...")}, "fails-on-threads!"),
    ({"threads": Threads({}, failure="...")}, ""),
    # what workers share
    ({"state": State(handles=(HANDLE,))}, "shared-handle!"),
    ({"state": State(handles=(HANDLE,)), "loader": PROCESSES}, "shared-handle!"),
    ({"state": State(handles=(HANDLE,)), "loader": THREADS}, ""),
    ({"state": State(handles=(HANDLE,)), "loader": INLINE}, ""),
    ({"state": State(thread_handles=(HANDLE,))}, ""),
    ({"state": State(thread_handles=(HANDLE,)), "loader": THREADS}, "shared-handle!"),
    ({"state": replace(LAMBDA, handles=(HANDLE,))}, "shared-handle!"),  # it explains why pickling fails
    ({"state": State(own_generators=("dataset.rng",), global_generators=("random",))}, "copied-random!"),
    ({"state": State(own_generators=("dataset.rng",)), "loader": THREADS}, "copied-random!"),
    ({"state": State(own_generators=("dataset.rng",)), "loader": INLINE}, ""),
    ({"state": State(global_generators=("random",))}, "copied-random"),
    ({"state": State(global_generators=("random",)), "loader": THREADS}, "copied-random!"),
    ({"state": State(global_generators=("random",)), "loader": PROCESSES}, ""),  # each process has its own seed
    ({"state": LAMBDA}, "unpicklable"),
    ({"state": LAMBDA, "headroom": replace(HEADROOM, start_method="spawn")}, "unpicklable!"),
    ({"state": LAMBDA, "loader": loader(start_method="forkserver")}, "unpicklable!"),
    ({"state": LAMBDA, "loader": THREADS}, ""),
    ({"batch": batch(not_picklable="a generator")}, "unpicklable!"),
    ({"batch": batch(not_picklable="a generator"), "loader": THREADS}, ""),
    # samples that are wrong together
    ({"samples": samples(reused="x")}, "reused-samples!"),
    ({"samples": SORTED, "loader": loader(is_sequential=True)}, "sorted-labels"),
    ({"samples": SORTED, "loader": loader(is_sequential=True, batch_size=1)}, ""),
    ({"samples": SORTED, "loader": PROCESSES}, ""),
    ({"samples": SORTED}, ""),
    # time
    (SLEEPY, "waiting"),
    ({**SLEEPY, "loader": loader(workers=8)}, ""),
    ({**SLEEPY, "making": Making("Mine", 1000, is_async=True)}, ""),
    ({**SLEEPY, "threads": None}, "waiting"),
    ({"samples": samples(locks=(Lock("dataset.a", 0.3), Lock("dataset.b", 0.9)))}, "serialised"),
    ({"samples": samples(locks=(Lock("dataset.b", 0.9),), cpu_share=0.1), "loader": THREADS}, "serialised!"),
    ({"samples": samples(locks=(Lock("dataset.b", 0.9),)), "loader": PROCESSES}, ""),
    ({"samples": samples(locks=(Lock("dataset.a", 0.3),)), "loader": THREADS}, ""),
    ({"threads": LOCKED}, "serialised"),
    ({"threads": LOCKED, "loader": THREADS}, "serialised!"),
    ({"threads": LOCKED, "loader": PROCESSES}, ""),
    ({"threads": replace(LOCKED, helped=1.8)}, ""),  # a library's own threads use the cores
    ({"threads": LOCKED, "samples": samples(seconds=(1e-5,) * 200)}, ""),
    ({"samples": LATE}, "stragglers"),
    ({"samples": replace(LATE, repeated=())}, ""),
    ({"samples": LENGTHS, "batch": batch(bytes=64 * MIB)}, "padding"),
    ({"samples": LENGTHS, "batch": None}, "padding"),
    ({"samples": LENGTHS}, ""),  # the collate function pads nothing
    ({"samples": samples(lengths=(100,) * 320 + (101,) * 320)}, ""),
    ({"batch": batch(floats=(PIXELS,))}, "floats"),
    ({"batch": batch(floats=(replace(PIXELS, sample_bytes=1000),))}, ""),
    ({"batch": batch(**OBJECTS, object_kind="texts", as_arrays_s=1e-3)}, "slow-collate"),
    ({"batch": batch(**OBJECTS)}, "slow-collate"),
    ({"batch": batch(**{**OBJECTS, "sent_s": 1e-3})}, ""),
    ({"batch": batch(collate_s=0.064, is_custom=True)}, "slow-collate"),
    ({"batch": batch(collate_s=0.064, is_custom=True, by_default_s=1e-3)}, "slow-collate"),
    ({"batch": batch(collate_s=0.064, is_custom=True, copy_s=0.03)}, ""),
    ({"batch": batch(collate_s=0.064, fields=200)}, "slow-collate"),
    ({"batch": batch(collate_s=0.064, fields=3)}, ""),
    # workers
    ({"state": State(held=(HELD,))}, "copied-objects"),
    ({"state": State(held=(replace(HELD, bytes=2 << 30),))}, "copied-objects!"),
    ({"state": State(held=(replace(HELD, bytes=MIB),))}, ""),
    ({"state": State(held=(HELD,)), "loader": INLINE}, ""),
    ({"state": State(held=(HELD,)), "loader": THREADS}, ""),
    ({"loader": loader(start_s=12.5)}, "workers-restarted"),
    ({"loader": loader(start_s=0.01)}, ""),
    ({"loader": loader(start_s=12.5), "making": Making("Mine", None)}, ""),
    ({"loader": loader(workers=10)}, "too-many-workers"),
    ({"loader": loader(workers=9)}, ""),
    ({"loader": loader(workers=8), "headroom": replace(HEADROOM, local_ranks=2)}, "too-many-workers"),
    ({"loader": loader(workers=3)}, "too-few-workers"),
    ({"loader": loader(workers=0, engine="inline"), "headroom": replace(HEADROOM, cores=1)}, ""),
    ({"loader": loader(workers=16), "samples": samples(cpu_share=0.5), "threads": None}, ""),
]


def found(setup: Measured) -> dict[str, Finding]:
    return {finding.name: finding for finding in diagnose(setup)}


@pytest.mark.parametrize(("changes", "expected"), RULES)
def test_each_problem_is_named_and_no_other(changes: dict[str, Any], expected: str) -> None:
    """An exclamation mark is a serious finding."""
    if changes.get("loader") == INLINE and "samples" not in changes:
        changes = {**changes, "headroom": replace(HEADROOM, cores=1)}  # where no workers are enough
    found = diagnose(measured(**changes))
    assert [finding.name + "!" * finding.is_serious for finding in found] == [expected] * bool(expected)


def test_gains_compare_the_pipeline_with_and_without_the_problem() -> None:
    assert found(measured(**SLEEPY))["waiting"].gain == pytest.approx(7.7, rel=0.05)
    custom = measured(batch=batch(collate_s=0.064, carry_s=0.064, is_custom=True, by_default_s=0.016))
    assert found(custom)["slow-collate"].gain == pytest.approx((32 + 64) / (32 + 16), rel=0.05)
    texts = measured(batch=batch(**OBJECTS, object_kind="texts", as_arrays_s=0.012))
    assert found(texts)["slow-collate"].gain == pytest.approx((32 + 60) / (32 + 12), rel=0.05)
    floats = measured(batch=batch(floats=(replace(PIXELS, carry_s=0.0),), carry_s=0.032))
    assert found(floats)["floats"].gain == pytest.approx(2 / 0.5, rel=0.05)


def test_the_evidence_names_what_was_measured() -> None:
    held = found(measured(samples=samples(locks=(Lock("dataset.b", 0.9),))))["serialised"]
    assert "dataset.b for 90%" in held.problem
    assert "at most 1.1 times the samples of one" in held.evidence
    assert "GIL" in found(measured(threads=LOCKED))["serialised"].problem
    copies = found(measured(state=State(held=(HELD,))))["copied-objects"]
    assert "800.0 MiB in 8 workers; shared, it takes 20.0 MiB once" in copies.evidence
    assert copies.code == "# at the end of __init__:\nself.files = feedline.share(self.files)"
    assert found(measured(state=State(held=(replace(HELD, shared_bytes=None),))))["copied-objects"].code is None
    late = found(measured(samples=LATE, loader=loader(moves=True)))["stragglers"]
    assert late.code == "DataLoader(dataset, in_order=False)"
    assert "Slow again when repeated: 1, 2." in late.evidence
    pages = found(measured(samples=replace(LENGTHS, length_field="tokens"), batch=None, loader=PROCESSES))["padding"]
    assert 'len(dataset[index]["tokens"])' in str(pages.code)
    assert "pad(" not in str(pages.code), "the loader has a collate function already"
