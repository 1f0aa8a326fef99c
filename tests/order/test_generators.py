"""Iterable datasets that are generators: the numbers they draw continue from sample to sample on every engine."""

import itertools
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import feedline
from feedline import DataLoader
from tests.order import datasets
from tests.order.facts import all_bytes, interrupted, rows

COUNT = 150


class Uneven(datasets.Stream):
    """Draws from different generators, from some of them rarely."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.n):
            drawn = datasets.draw_everywhere() if index % 7 == 3 else [0.0] * 8
            if index % 2:
                drawn[0] = random.gauss(0, 1)
            if index % 5 == 4:
                drawn[2] = float(np.random.normal())
            if index == 70:
                drawn[4] = torch.randn((), dtype=torch.float64).item()
            yield np.array([index, *drawn])


class Buffered(datasets.Stream):
    """Shuffles its files in `iter`, then shuffles samples in a buffer."""

    def __iter__(self) -> Iterator[Any]:
        files = list(range(self.n))
        random.shuffle(files)
        return self._shuffled(files)

    def _shuffled(self, files: list[int]) -> Iterator[Any]:
        buffer = [files.pop() for _ in range(10)]
        while files:
            place = random.randrange(10)
            yield np.array([buffer[place], np.random.normal()])
            buffer[place] = files.pop()
        yield from (np.array([index, torch.rand(()).item()]) for index in buffer)


KINDS: dict[str, Callable[[int], Any]] = {
    "uneven": Uneven,
    "buffered": Buffered,
}


def disturbed(batches: Any) -> Iterator[Any]:
    """Draw and seed between batches, as training loops do."""
    for number, batch in enumerate(batches):
        yield batch
        datasets.draw_everywhere()
        if number % 4 == 1:
            torch.manual_seed(number)
            np.random.seed(number)
            random.seed(number)


def loader_of(kind: str, batch_size: int = 7, **options: Any) -> Any:
    return DataLoader(KINDS[kind](COUNT), batch_size, **{"seed": 3, **options})


@pytest.mark.parametrize(("kind", "size"), [("uneven", 1), ("uneven", 64), ("buffered", 7)])
def test_what_a_generator_draws_does_not_depend_on_batches_or_the_training_loop(kind: str, size: int) -> None:
    whole = rows(loader_of(kind, COUNT))
    assert len(whole) == len(set(whole)) == COUNT
    assert rows(disturbed(loader_of(kind, size))) == whole
    assert rows(disturbed(loader_of(kind, size, shard=True))) == rows(loader_of(kind, COUNT, shard=True))


@pytest.mark.parametrize(("kind", "workers"), [("uneven", 2), ("buffered", 3)])
def test_what_a_generator_draws_does_not_depend_on_the_workers(kind: str, workers: int) -> None:
    options: dict[str, Any] = {"shard": True, "num_workers": workers}
    assert rows(disturbed(loader_of(kind, **options))) == rows(loader_of(kind, 1, shard=True))


# -- resuming ---


@pytest.mark.parametrize(("kind", "shard"), [("uneven", False), ("buffered", True)])
def test_a_generator_resumes_from_every_step(kind: str, shard: bool) -> None:
    whole = all_bytes(loader_of(kind, shard=shard))
    for step in range(len(whole) + 1):
        taken, resumed = interrupted(lambda: loader_of(kind, shard=shard), step)
        assert all_bytes(taken) + all_bytes(disturbed(resumed)) == whole


class Deadly(datasets.Stream):
    """Kills the worker that makes sample 40, once."""

    def __init__(self, n: int, marker: str) -> None:
        super().__init__(n)
        self.marker = marker

    def __iter__(self) -> Iterator[Any]:
        for index in range(self.n):
            if index == 40 and not os.path.exists(self.marker):
                Path(self.marker).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield np.array([index, *datasets.draw_everywhere()])


@pytest.mark.parametrize("shard", [True, False])
def test_a_generator_continues_after_a_worker_was_killed(shard: bool, tmp_path: Path) -> None:
    marker = tmp_path / "killed"
    loader = DataLoader(Deadly(COUNT, str(marker)), 7, seed=3, shard=shard, num_workers=2)
    with pytest.warns(feedline.errors.WorkerWarning):
        found = all_bytes(disturbed(loader))
    assert marker.exists()
    whole = DataLoader(datasets.DrawingStream(COUNT), 7, seed=3, shard=shard, num_workers=2)
    assert found == all_bytes(whole)


# -- failures ---


class Failing(datasets.Stream):
    def __iter__(self) -> Iterator[Any]:
        for index in range(self.n):
            drawn = datasets.draw_everywhere()
            if index == 100:
                raise OSError("unreadable")
            yield np.array([index, *drawn])


@pytest.mark.parametrize(("on_error", "shard", "workers"), [("raise", True, 0), ("skip", False, 2), ("retry", True, 2)])
def test_samples_before_a_failure_have_drawn_the_same_numbers(on_error: Any, shard: bool, workers: int) -> None:
    loader = DataLoader(Failing(COUNT), 7, seed=3, shard=shard, on_error=on_error, num_workers=workers)
    found: list[Any] = []
    with pytest.raises(OSError, match="unreadable") as caught:
        found.extend(batch.clone() for batch in disturbed(loader))
    assert any("sample 100" in note for note in caught.value.__notes__)
    whole = DataLoader(datasets.DrawingStream(COUNT), 7, seed=3, shard=shard, num_workers=workers)
    assert rows(found) == rows(itertools.islice(whole, len(found)))
    assert len(found) >= 14
