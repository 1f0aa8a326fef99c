from __future__ import annotations

from dataclasses import replace

import pytest

from feedline.tools.advise.state import find
from feedline.tools.measure.measured import Held, Making, OpenHandle, State
from tests.tools.advise.measurements import HEADROOM, MIB, loader, measured, samples

HANDLE = OpenHandle("dataset.file", "an open file (io.FileIO)", "All processes share it.", "Keep the path.")


def test_a_sound_dataset_has_no_finding() -> None:
    assert find(measured()) == []


@pytest.mark.parametrize(
    ("asked_for", "found"), [(None, True), ("process", True), ("thread", False), ("inline", False)]
)
def test_open_handles_are_reported_only_for_processes(asked_for: str | None, found: bool) -> None:
    given = None if asked_for is None else loader(engine=asked_for)
    assert len(find(measured(state=State(handles=(HANDLE,)), loader=given))) == found


def test_handles_used_by_threads_are_reported_only_for_threads() -> None:
    state = State(thread_handles=(HANDLE,))
    (finding,) = find(measured(state=state, loader=loader(engine="thread")))
    assert (finding.name, finding.severity) == ("shared-handle", "serious")
    assert find(measured(state=state)) == [], "threads are not used"


def test_an_open_handle_explains_a_pickling_error() -> None:
    state = State(handles=(HANDLE,), not_picklable="dataset.file is an open file")
    assert [finding.name for finding in find(measured(state=state))] == ["shared-handle"]


@pytest.mark.parametrize(
    ("started_by", "severity"), [("fork", "advice"), ("spawn", "serious"), ("forkserver", "serious")]
)
def test_unpicklable_datasets_are_serious_if_workers_are_spawned(started_by: str, severity: str) -> None:
    state = State(not_picklable="dataset.f is a lambda", pickle_advice="Define it at the top level.")
    (finding,) = find(measured(state=state, headroom=replace(HEADROOM, start_method=started_by)))
    assert (finding.name, finding.severity, finding.fix) == ("unpicklable", severity, "Define it at the top level.")
    assert find(measured(state=state, loader=loader(engine="thread"))) == []


def test_generators_are_reported_for_processes_and_threads() -> None:
    state = State(own_generators=("dataset.rng",), global_generators=("random",))
    alone = {finding.name: finding for finding in find(measured(state=state))}
    assert alone.keys() == {"copied-random", "global-random"}
    assert "same numbers" in alone["copied-random"].evidence
    threads = find(measured(state=state, loader=loader(engine="thread")))
    assert [finding.is_serious for finding in threads] == [True, True]
    assert all("which thread comes first" in finding.evidence for finding in threads)
    assert find(measured(state=state, loader=loader(engine="inline", workers=0))) == []


def test_copied_objects_are_counted_per_worker() -> None:
    held = Held("dataset.files", 1_000_000, 100 * MIB, 20 * MIB)
    (finding,) = find(measured(state=State(held=(held,))))
    assert "800.0 MiB in 8 workers; shared, it takes 20.0 MiB once" in finding.evidence
    assert finding.code == "# at the end of __init__:\nself.files = feedline.share(self.files)"
    assert not finding.is_serious
    large = replace(held, bytes=2 << 30)
    (finding,) = find(measured(state=State(held=(large,))))
    assert finding.is_serious, "as much memory as the machine has"
    assert find(measured(state=State(held=(large,)), loader=loader(workers=0, engine="inline"))) == []


def test_objects_that_cannot_be_shared_get_another_fix() -> None:
    (finding,) = find(measured(state=State(held=(Held("dataset.files", 10**6, 100 * MIB, None),))))
    assert finding.code is None
    assert "arrays" in str(finding.fix)


def test_init_time_is_compared_with_an_epoch() -> None:
    making = Making("Mine", 16_000, make_s=4.0)  # an epoch of 2 s on eight cores
    (finding,) = find(measured(making=making, state=State(pickle_s=0.4)))
    assert (finding.name, finding.gain, finding.severity) == ("slow-init", 2.5, "serious"), "6 s, or 2.4 s"
    (finding,) = find(measured(making=making, state=State(not_picklable="...", pickle_advice="...")))[:1]
    assert (finding.gain, finding.code) == (None, None), "it cannot be pickled"
    assert find(measured(making=Making("Mine", 16_000_000, make_s=4.0))) == []
    assert find(measured(making=Making("Mine", None, make_s=4.0))) == [], "a dataset without a length"


def test_slow_pickling_is_reported_unless_copied_objects_explain_it() -> None:
    (finding,) = find(measured(state=State(pickle_s=2.0, pickle_bytes=MIB)))
    assert finding.name == "slow-pickling"
    held = Held("dataset.files", 10**6, 100 * MIB, MIB)
    both = find(measured(state=State(pickle_s=2.0, held=(held,))))
    assert [finding.name for finding in both] == ["copied-objects"], "they explain the slow pickling"


def test_memory_growth_is_serious_if_an_epoch_does_not_fit() -> None:
    (finding,) = find(measured(samples=samples(growth=10.0 * MIB)))
    assert (finding.name, finding.severity) == ("memory-growth", "advice")
    (finding,) = find(measured(samples=samples(growth=100.0 * MIB)))
    assert finding.severity == "serious"
    assert find(measured(samples=samples(growth=0.1 * MIB))) == []
