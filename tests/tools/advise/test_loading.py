from __future__ import annotations

from dataclasses import replace

import pytest

from feedline.tools.advise.loading import find
from feedline.tools.measure.measured import OpenHandle, State, Threads
from tests.tools.advise.measurements import HEADROOM, MIB, batch, loader, measured, samples


def test_a_sound_loader_has_no_finding() -> None:
    assert find(measured()) == []
    assert find(measured(loader=loader())) == []


@pytest.mark.parametrize(("start_s", "gain"), [(12.5, 2.0), (0.1, None), (None, None)])
def test_start_time_is_compared_with_an_epoch(start_s: float | None, gain: float | None) -> None:
    findings = find(measured(loader=loader(start_s=start_s)))  # an epoch of 12.5 s
    assert [finding.gain for finding in findings] == [gain] * (gain is not None)


@pytest.mark.parametrize(
    ("count", "ranks", "name"),
    [(8, 1, None), (9, 1, None), (10, 1, "too-many-workers"), (8, 4, "too-many-workers"), (3, 1, "too-few-workers"),
     (4, 1, None), (0, 1, "too-few-workers")],
)  # fmt: skip
def test_workers_are_compared_with_cores(count: int, ranks: int, name: str | None) -> None:
    setup = measured(loader=loader(workers=count), headroom=replace(HEADROOM, local_ranks=ranks))
    assert [finding.name for finding in find(setup)] == [name] * (name is not None)


def test_workers_that_wait_or_have_little_to_do_are_not_reported() -> None:
    assert find(measured(loader=loader(workers=32), samples=samples(cpu_share=0.1))) == []
    assert find(measured(loader=loader(workers=1), samples=samples(seconds=(1e-6,) * 10))) == []


def test_a_failing_loader_is_reported_unless_another_finding_explains_it() -> None:
    (finding,) = find(measured(loader=loader(failure="Traceback ...\nKeyError: 'z'")))
    assert (finding.name, finding.severity) == ("failing-loader", "serious")
    assert "KeyError: 'z'" in finding.evidence
    handle = OpenHandle("dataset.file", "an open file", "", "")
    for explained in (
        measured(loader=loader(failure="..."), samples=samples(failed=3)),
        measured(loader=loader(failure="..."), batch=batch(not_picklable="a generator")),
        measured(loader=loader(failure="..."), state=State(handles=(handle,))),
        measured(loader=loader(failure="...", engine="thread"), state=State(thread_handles=(handle,))),
        measured(loader=loader(failure="...", engine="thread"), threads=Threads({}, failure="...")),
    ):
        assert find(explained) == []


def test_prefetching_is_compared_with_memory() -> None:
    (finding,) = find(measured(loader=loader(depth=64)))
    assert (finding.name, finding.severity) == ("prefetch-memory", "serious")
    assert "8 workers x 64 batches x 32.0 MiB = 16.0 GiB" in finding.evidence
    assert find(measured(loader=loader(depth=64), batch=batch(bytes=MIB))) == []


def test_small_shared_memory_is_serious_only_for_torch() -> None:
    small = replace(HEADROOM, shared_bytes=64 * MIB)
    (finding,) = find(measured(loader=loader(kind="torch"), headroom=small))
    assert (finding.name, finding.severity) == ("shared-memory", "serious")
    assert find(measured(loader=loader(), headroom=small)) == []


@pytest.mark.parametrize(("limit", "severity"), [(1024, None), (64, "advice"), (40, "serious"), (None, None)])
def test_open_files_are_compared_with_the_limit(limit: int | None, severity: str | None) -> None:
    findings = find(measured(loader=loader(), headroom=replace(HEADROOM, open_files=limit)))
    assert [finding.severity for finding in findings] == [severity] * (severity is not None)
    assert all("about 45" in finding.evidence for finding in findings)


@pytest.mark.parametrize(
    ("seconds", "size", "found"), [(2.0, 0, True), (0.1, 1 << 30, True), (0.1, MIB, False), (None, 0, False)]
)
def test_shuffling_that_takes_much_time_or_memory_is_reported(seconds: float | None, size: int, found: bool) -> None:
    findings = find(measured(loader=loader(shuffle_s=seconds, shuffle_bytes=size)))
    assert [finding.name for finding in findings] == ["shuffling"] * found
