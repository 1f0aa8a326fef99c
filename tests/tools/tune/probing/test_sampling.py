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
from feedline.tools.tune.measured import Samples
from feedline.tools.tune.probing import sampling
from feedline.tools.tune.probing.sampling import Sampling, as_array, leaves, size_of, some_indices, try_threads


@pytest.fixture(autouse=True)
def nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hooks would stay for all other tests."""

    class Nothing:
        def begin(self) -> None: ...
        def sample(self) -> None: ...
        def end(self, *_: object) -> Any:
            return None

    monkeypatch.setattr(sampling, "Opens", Nothing)
    monkeypatch.setattr(sampling, "Decodes", Nothing)


class Given(Clock):
    """A clock on which a sample takes what `seconds_of` says of it, and computes for a part of that."""

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
        """There is nothing open."""


def made(
    ask: Any, indices: Iterator[Any], *, keep: int = 4, seconds: float = 60.0, clock: Clock | None = None
) -> tuple[Samples, list[Any]]:
    clock = Clock() if clock is None else clock
    run = Sampling(ask, indices, keep)
    try:
        return run.run(time.monotonic() + seconds, clock, can_repeat=True), run.kept
    finally:
        clock.close()


def test_fields_have_names() -> None:
    sample = {"x": np.zeros(3), "boxes": [{"id": 1}, (2, 3)], "words": ["a"] * 40}
    assert [name for name, _ in leaves(sample)] == ["x", "boxes[0].id", "boxes[1][0]", "boxes[1][1]", "words"]
    assert list(leaves(5)) == [("sample", 5)]


def test_a_sample_may_hold_itself() -> None:
    sample: list[Any] = []
    sample.append(sample)
    assert len(list(leaves(sample))) == 1
    assert size_of(sample) > 0


def test_sizes_and_arrays() -> None:
    assert size_of({"x": np.zeros(3), "t": torch.zeros(2), "s": "four", "n": 1}) == 24 + 8 + 4 + 8
    assert as_array(torch.zeros(2)) is not None
    assert as_array(torch.zeros(2, dtype=torch.bfloat16)) is None
    assert as_array(np.array([object()])) is None


def test_indices_come_from_all_over() -> None:
    indices = some_indices(range(10**9), 10**9)
    assert len(set(indices)) == 2000
    assert max(indices) > 9 * 10**8
    assert some_indices({"a": 1, "b": 2}, 2) == ["a", "b"]
    assert sorted(some_indices("abc", 3)) == [0, 1, 2]


def test_lengths_are_those_of_the_field_that_differs() -> None:
    samples, kept = made(lambda index: {"x": np.zeros((index, 2)), "y": np.zeros(5)}, iter(range(10)))
    assert (samples.lengths, samples.length_field) == (tuple(range(10)), "x")
    assert len(kept) == 4
    assert made(lambda index: np.zeros(5), iter(range(10)))[0].lengths == ()


def test_samples_that_fail_are_counted() -> None:
    def ask(index: int) -> int:
        if index % 2:
            raise ValueError("odd")
        return index

    samples, _ = made(ask, iter(range(20)))
    assert (len(samples.seconds), samples.failed) == (10, 10)
    assert samples.failure.startswith("sample 1:\nTraceback")
    assert Path(__file__).name in samples.failure


def test_the_first_sample_is_awaited_and_no_other_when_the_time_is_up() -> None:
    asked: list[int] = []
    samples, _ = made(asked.append, iter(range(100)), seconds=-1.0)
    assert len(samples.seconds) == 1
    assert asked[:1] == [0]


def test_slow_samples_are_made_again_in_turns_with_a_usual_one() -> None:
    clock = Given(lambda index: 0.02 if index == 7 else 1e-4)
    asked: list[int] = []

    def ask(index: int) -> Any:
        asked.append(index)
        return clock.ask(index)

    samples, _ = made(ask, iter(range(50)), clock=clock)
    assert samples.repeated == (("7", 0.02),)
    again = asked[50:]
    assert again.count(7) == 3
    assert len(again) == 6


def test_a_sample_that_was_slow_once_is_no_straggler() -> None:
    times: dict[int, list[float]] = {7: [0.02]}
    clock = Given(lambda index: times[index].pop() if times.get(index) else 1e-4)
    assert made(clock.ask, iter(range(50)), clock=clock)[0].repeated == ()


def test_a_machine_that_became_slow_makes_no_stragglers() -> None:
    """All samples that are made again take as long as the slowest: a burst of the neighbours, not the sample."""
    calls: list[int] = []

    def seconds_of(index: int) -> float:
        calls.append(index)
        return 0.02 if index == 7 or len(calls) > 50 else 1e-4

    clock = Given(seconds_of)
    assert made(clock.ask, iter(range(50)), clock=clock)[0].repeated == ()


@pytest.mark.parametrize("share", [0.05, 0.95])
def test_computing_is_told_from_sleeping(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.process_time", lambda: 0.0)
    clock = Given(lambda index: 4e-3, share)
    assert made(clock.ask, iter(range(20)), clock=clock)[0].cpu_share == pytest.approx(share)


def test_computing_of_other_threads_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that waits for an event loop, or a library's threads, is not one that sleeps."""
    ticks = iter(range(1000))
    monkeypatch.setattr("time.process_time", lambda: next(ticks) * 4e-3)
    clock = Given(lambda index: 4e-3, 0.01)
    assert made(clock.ask, iter(range(20)), clock=clock)[0].cpu_share == pytest.approx(1.0)


def on_given_threads(rates: dict[int, list[float]], failure: Exception | None = None) -> Callable[..., OnThreads]:
    """Stand for real threads: they make what a list says, round after round."""

    def run(calls: list[Any], until_s: float, **_: Any) -> OnThreads:
        rate = rates[len(calls)].pop(0)
        return OnThreads(rate, 0.1, awake=1.0, failure=failure)

    return run


def test_medians_of_rounds_in_turns_count(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = {1: [100.0, 5.0, 102.0], 2: [200.0, 198.0, 1.0]}
    monkeypatch.setattr(sampling, "on_threads", on_given_threads(rates))
    threads = try_threads(lambda index: index, [1, 2, 3], (1, 2), time.monotonic() + 600)
    assert threads.rates == {1: 100.0, 2: 198.0}, "a round in which a neighbour had the cores is left out"
    assert threads.speedup(2) == 2.0
    assert threads.speedup(8) is None


def test_a_stream_without_samples_is_empty() -> None:
    with pytest.raises(DatasetFailed, match="is empty"):
        made(lambda index: next(iter(())), iter(range(3)))


def test_what_samples_raise_on_threads_is_kept() -> None:

    def fail(index: int) -> None:
        raise RuntimeError("not here")

    threads = try_threads(fail, [1, 2, 3], (1, 2), time.monotonic() + 60)
    assert threads.rates == {}
    assert "RuntimeError: not here" in threads.failure


def test_the_switch_interval_is_put_back() -> None:
    before = sys.getswitchinterval()
    try_threads(lambda index: index, [1], (1,), time.monotonic() + 0.1)
    assert sys.getswitchinterval() == before
