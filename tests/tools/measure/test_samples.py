from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.errors import DatasetFailed
from feedline.system.timing import Clock, OnThreads
from feedline.tools.measure import samples as sampling
from feedline.tools.measure.measured import Samples
from feedline.tools.measure.samples import Sampling, as_array, leaves, size_of, some_indices, try_threads


class FakeClock(Clock):
    """A clock on which each sample takes the time that `seconds_of` returns, and computes for a share of it."""

    def __init__(self, seconds_of: Callable[[int], float], share: float = 1.0) -> None:
        self.index = 0
        self._seconds_of, self._share = seconds_of, share

    def ask(self, index: int) -> Any:
        self.index = index
        return np.zeros(3)

    def now(self) -> tuple[float, float]:
        return 0.0, 0.0

    def since(self, before: tuple[float, float]) -> tuple[float, float]:
        seconds = self._seconds_of(self.index)
        return seconds, seconds * self._share

    def close(self) -> None:
        """Do nothing: nothing is open."""


def run_sampling(
    ask: Any, indices: Iterator[Any], *, keep: int = 4, seconds: float = 60.0, clock: Clock | None = None
) -> tuple[Samples, list[Any]]:
    clock = Clock() if clock is None else clock
    run = Sampling(ask, indices, keep)
    return run.run(time.monotonic() + seconds, clock, can_repeat=True), run.kept


def test_leaves_have_the_names_of_their_fields() -> None:
    sample = {"x": np.zeros(3), "boxes": [{"id": 1}, (2, 3)], "words": ["a"] * 40}
    assert [name for name, _ in leaves(sample)] == ["x", "boxes[0].id", "boxes[1][0]", "boxes[1][1]", "words"]
    assert list(leaves(5)) == [("sample", 5)]


def test_a_sample_may_contain_itself() -> None:
    sample: list[Any] = []
    sample.append(sample)
    assert len(list(leaves(sample))) == 1
    assert size_of(sample) > 0


def test_sizes_of_samples_and_arrays_in_them() -> None:
    assert size_of({"x": np.zeros(3), "t": torch.zeros(2), "s": "four", "n": 1}) == 24 + 8 + 4 + 8
    assert as_array(torch.zeros(2)) is not None
    assert as_array(torch.zeros(2, dtype=torch.bfloat16)) is None
    assert as_array(np.array([object()])) is None


def test_indices_are_spread_over_the_dataset() -> None:
    indices = some_indices(range(10**9), 10**9)
    assert len(set(indices)) == 2000
    assert max(indices) > 9 * 10**8
    assert some_indices({"a": 1, "b": 2}, 2) == ["a", "b"]
    assert sorted(some_indices("abc", 3)) == [0, 1, 2]


def test_lengths_come_from_the_field_whose_length_varies() -> None:
    samples, kept = run_sampling(lambda index: {"x": np.zeros((index, 2)), "y": np.zeros(5)}, iter(range(10)))
    assert (samples.lengths, samples.length_field) == (tuple(range(10)), "x")
    assert len(kept) == 4
    assert run_sampling(lambda index: np.zeros(5), iter(range(10)))[0].lengths == ()


def test_samples_that_fail_are_counted() -> None:
    def ask(index: int) -> int:
        if index % 2:
            raise ValueError("odd")
        return index

    samples, _ = run_sampling(ask, iter(range(20)))
    assert (len(samples.seconds), samples.failed) == (10, 10)
    assert samples.failure.startswith("sample 1:\nTraceback")
    assert Path(__file__).name in samples.failure


def test_only_the_first_sample_is_made_after_the_time_limit() -> None:
    asked: list[int] = []
    samples, _ = run_sampling(asked.append, iter(range(100)), seconds=-1.0)
    assert len(samples.seconds) == 1
    assert asked[:1] == [0]


def test_slow_samples_are_repeated_alternating_with_a_typical_one() -> None:
    clock = FakeClock(lambda index: 0.02 if index == 7 else 1e-4)
    asked: list[int] = []

    def ask(index: int) -> Any:
        asked.append(index)
        return clock.ask(index)

    samples, _ = run_sampling(ask, iter(range(50)), clock=clock)
    assert samples.repeated == (("7", 0.02),)
    again = asked[50:]
    assert again.count(7) == 3
    assert len(again) == 6


def test_a_sample_that_was_slow_once_is_not_a_straggler() -> None:
    times: dict[int, list[float]] = {7: [0.02]}
    clock = FakeClock(lambda index: times[index].pop() if times.get(index) else 1e-4)
    assert run_sampling(clock.ask, iter(range(50)), clock=clock)[0].repeated == ()


def test_a_machine_that_became_slow_causes_no_stragglers() -> None:
    """All repeated samples take as long as the slowest: other programs are the cause, not the sample."""
    calls: list[int] = []

    def seconds_of(index: int) -> float:
        calls.append(index)
        return 0.02 if index == 7 or len(calls) > 50 else 1e-4

    clock = FakeClock(seconds_of)
    assert run_sampling(clock.ask, iter(range(50)), clock=clock)[0].repeated == ()


@pytest.mark.parametrize("share", [0.05, 0.95])
def test_computing_is_distinguished_from_sleeping(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    clock = FakeClock(lambda index: 4e-3, share)
    assert run_sampling(clock.ask, iter(range(20)), clock=clock)[0].cpu_share == pytest.approx(share)


def test_cpu_time_of_other_threads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that waits for an event loop, or a library's threads, does not sleep."""
    ticks = iter(range(1000))
    monkeypatch.setattr("time.process_time", lambda: next(ticks) * 4e-3)
    clock = FakeClock(lambda index: 4e-3, 0.01)
    assert run_sampling(clock.ask, iter(range(20)), clock=clock)[0].cpu_share == pytest.approx(1.0)


def on_given_threads(rates: dict[int, list[float]], failure: Exception | None = None) -> Callable[..., OnThreads]:
    """Replace real threads: each round returns the next rate of a list."""

    def run(calls: list[Any], until_s: float, **_: Any) -> OnThreads:
        rate = rates[len(calls)].pop(0)
        return OnThreads(rate, 0.1, awake=1.0, failure=failure)

    return run


def test_rates_are_medians_of_alternating_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {1: [100.0, 5.0, 102.0], 2: [200.0, 198.0, 1.0]}
    monkeypatch.setattr(sampling, "on_threads", on_given_threads(rates))
    threads = try_threads(lambda index: index, [1, 2, 3], (1, 2), time.monotonic() + 600)
    assert threads.rates == {1: 100.0, 2: 198.0}, "rounds disturbed by other programs do not count"
    assert threads.speedup(2) == 2.0
    assert threads.speedup(8) is None


def test_a_stream_without_samples_is_empty() -> None:
    with pytest.raises(DatasetFailed, match="is empty"):
        run_sampling(lambda index: next(iter(())), iter(range(3)))


def test_errors_on_threads_are_kept() -> None:

    def fail(index: int) -> None:
        raise RuntimeError("not here")

    threads = try_threads(fail, [1, 2, 3], (1, 2), time.monotonic() + 60)
    assert threads.rates == {}
    assert "RuntimeError: not here" in threads.failure


def test_the_switch_interval_is_restored() -> None:
    before = sys.getswitchinterval()
    try_threads(lambda index: index, [1], (1,), time.monotonic() + 0.1)
    assert sys.getswitchinterval() == before
