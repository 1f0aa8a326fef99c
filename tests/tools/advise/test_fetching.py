from __future__ import annotations

import pytest

from feedline.tools.advise.fetching import find
from feedline.tools.measure.measured import Making, Threads
from tests.tools.advise.measurements import loader, measured, samples


def test_sound_samples_have_no_finding() -> None:
    assert find(measured()) == []
    assert find(measured(samples=None)) == []


@pytest.mark.parametrize(
    ("rate", "helped", "found"), [(1000.0, 1.0, True), (1400.0, 1.0, True), (1700.0, 1.0, False), (500.0, 1.9, False)]
)
def test_the_gil_is_distinguished_from_threads_of_a_library(rate: float, helped: float, found: bool) -> None:
    findings = find(measured(threads=Threads({1: 1000.0, 2: rate}, helped)))
    assert [finding.name for finding in findings] == ["gil-bound"] * found


@pytest.mark.parametrize("slowed", [0.2, 1.0, 3.0])
@pytest.mark.parametrize(("awake", "found"), [(0.5, True), (0.65, True), (0.95, False), (1.0, False)])
def test_the_gil_is_recognised_by_waiting_threads_at_any_speed_of_the_cores(
    awake: float, found: bool, slowed: float
) -> None:
    """Rates of one and two threads are measured one after the other, and other programs may disturb one of them."""
    threads = Threads({1: 1000.0, 2: 1500.0 * slowed}, awake={1: 1.0, 2: awake})
    assert [finding.name for finding in find(measured(threads=threads))] == ["gil-bound"] * found


@pytest.mark.parametrize(("asked_for", "severity"), [("thread", "serious"), (None, "advice"), ("process", None)])
def test_the_gil_is_serious_only_for_threads(asked_for: str | None, severity: str | None) -> None:
    given = None if asked_for is None else loader(engine=asked_for)
    findings = find(measured(threads=Threads({1: 1000.0, 2: 1000.0}), loader=given))
    assert [finding.severity for finding in findings] == [severity] * (severity is not None)
    assert all(finding.gain is None for finding in findings), "what processes gain was not measured"


def test_the_gain_of_waiting_counts_only_threads_beyond_the_existing_workers() -> None:
    waiting = samples(cpu_share=0.1)
    threads = Threads({1: 100.0, 2: 200.0, 8: 780.0})
    (alone,) = find(measured(samples=waiting, threads=threads))
    (two,) = find(measured(samples=waiting, threads=threads, loader=loader(workers=2)))
    assert (alone.name, alone.gain, two.gain) == ("waiting", 7.8, 3.9)
    assert find(measured(samples=waiting, threads=threads, loader=loader(workers=8))) == []


def test_processes_are_advised_for_waiting_samples_if_threads_were_not_measured() -> None:
    (finding,) = find(measured(samples=samples(cpu_share=0.1), threads=None))
    assert 'engine="process"' in str(finding.code)
    assert finding.gain == 8.0


def test_asynchronous_samples_need_no_threads() -> None:
    awaited = measured(samples=samples(cpu_share=0.1), making=Making("Mine", 10, 0.0, is_async=True))
    assert find(awaited) == []


def test_stragglers_are_reported_only_if_they_are_slow_again() -> None:
    times = (1e-3,) * 190 + (0.05,) * 10
    again = tuple((str(index), 0.05) for index in range(8))
    (finding,) = find(measured(samples=samples(seconds=times, repeated=again)))
    assert finding.name == "stragglers"
    assert "one in a hundred 50 ms or more" in finding.evidence
    assert finding.gain is None, "other batches are delivered first, but none is made sooner"
    assert finding.code == "DataLoader(dataset, seed=0)  # or in_order=False"
    (moving,) = find(measured(samples=samples(seconds=times, repeated=again), loader=loader(moves=True)))
    assert moving.code == "DataLoader(dataset, in_order=False)"
    assert "seed" not in (moving.fix or "")
    not_again = tuple((str(index), 1e-3) for index in range(8))
    assert find(measured(samples=samples(seconds=times, repeated=not_again))) == []


def test_an_early_end_is_serious_if_the_loader_ended() -> None:
    (finding,) = find(measured(ended="The dataset hung", ended_in="threads"))
    assert (finding.name, finding.severity) == ("ended-early", "advice")
    (finding,) = find(measured(ended="The dataset hung", ended_in="loader", loader=loader()))
    assert finding.severity == "serious"
