from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from feedline.errors import DatasetFailed
from feedline.system.timing import Clock
from feedline.tune.measured import Samples
from feedline.tune.probing import sampling
from feedline.tune.probing.sampling import Sampling, as_array, leaves, size_of, some_indices, try_threads


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


def made(ask: Any, indices: Iterator[Any], *, keep: int = 4, seconds: float = 5.0) -> tuple[Samples, list[Any]]:
    clock = Clock()
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
    assert samples.lengths == tuple(range(10))
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
    samples, _ = made(lambda index: time.sleep(0.01), iter(range(100)), seconds=0)
    assert len(samples.seconds) == 1


def test_slow_samples_are_made_again() -> None:
    samples, _ = made(lambda index: time.sleep(0.02 if index == 7 else 1e-4), iter(range(50)))
    assert samples.repeated[0][0] == "7"
    assert samples.repeated[0][1] >= 0.019


def test_threads_are_counted_and_failures_kept() -> None:
    threads = try_threads(lambda index: time.sleep(0.002), [1, 2, 3], (1, 4), time.monotonic() + 0.4)
    assert set(threads.rates) == {1, 4}
    assert (threads.speedup(4) or 0) > 2.5
    assert threads.speedup(2) is None
    with pytest.raises(DatasetFailed, match="is empty"):
        made(lambda index: next(iter(())), iter(range(3)))

    def fail(index: int) -> None:
        raise RuntimeError("not here")

    threads = try_threads(fail, [1, 2, 3], (1, 2), time.monotonic() + 0.4)
    assert threads.rates == {}
    assert "RuntimeError: not here" in threads.failure
