from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.system.timing import Clock
from feedline.tools.measure.measured import Samples
from feedline.tools.measure.samples import Sampling


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
    run = Sampling(ask, indices, clock, keep, can_repeat=True)
    return run.run(time.monotonic() + seconds), run.kept


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


def test_slow_samples_are_repeated_alternating_with_a_typical_one() -> None:
    clock = FakeClock(lambda index: 0.04 if index == 7 else 2e-3)
    asked: list[int] = []

    def ask(index: int) -> Any:
        asked.append(index)
        return clock.ask(index)

    samples, _ = run_sampling(ask, iter(range(50)), clock=clock)
    assert samples.repeated == (("7", 0.04),)
    again = asked[50:]
    assert again.count(7) == 3
    assert len(again) == 6


@pytest.mark.parametrize(("share", "others_s", "found"), [(0.05, 0.0, 0.05), (0.95, 0.0, 0.95), (0.01, 4e-3, 1.0)])
def test_sleeping_is_what_neither_the_sample_nor_other_threads_compute(
    share: float, others_s: float, found: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that waits for an event loop, or a library's threads, does not sleep."""
    ticks = iter(range(1000))
    monkeypatch.setattr("time.process_time", lambda: next(ticks) * others_s)
    clock = FakeClock(lambda index: 4e-3, share)
    assert run_sampling(clock.ask, iter(range(20)), clock=clock)[0].cpu_share == pytest.approx(found)


@pytest.mark.parametrize("is_same", [False, True])
def test_samples_that_later_ones_change_are_found(is_same: bool) -> None:
    row = np.zeros(3)

    def ask(index: int) -> Any:
        row[:] = index
        return {"y": np.array(index), "x": row if is_same else row.copy()}

    assert run_sampling(ask, iter(range(20)))[0].reused == ("x" if is_same else "")


@pytest.mark.parametrize(
    ("label_of", "field"), [(lambda index: index // 50, "y"), (lambda index: index % 4, ""), (lambda index: index, "")]
)
def test_labels_that_are_sorted_by_class_are_found(label_of: Callable[[int], Any], field: str) -> None:
    indices = np.random.default_rng(0).permutation(200).tolist()
    samples, _ = run_sampling(lambda index: {"x": np.zeros(3), "y": label_of(index)}, iter(indices))
    assert samples.sorted_labels == field
