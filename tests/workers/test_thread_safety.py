"""Whether the samples of a dataset are reproducible on threads."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from feedline import DataLoader, Loader, rng
from feedline.errors import DataWarning
from feedline.workers.thread_safety import must_leave_threads


class Samples:
    """Calls a function for each sample."""

    def __init__(self, draw: Callable[[], Any], count: int = 100) -> None:
        self.draw = draw
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> float:
        return float(self.draw())


GENERATORS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "numpy.random": np.random.rand,
    "torch": lambda: torch.rand(()),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_datasets_that_draw_from_the_global_generators_must_leave_threads(name: str) -> None:
    with pytest.warns(DataWarning, match=f"Samples draws random numbers from {name}, .*feedline.rng"):
        assert must_leave_threads(Samples(GENERATORS[name]), None, is_map=True)


OWN = np.random.default_rng(0)


@pytest.mark.parametrize("draw", [lambda: 1.0, lambda: rng().random(), OWN.random])
def test_other_datasets_stay_on_threads_without_a_warning(draw: Callable[[], Any]) -> None:
    assert not must_leave_threads(Samples(draw), None, is_map=True)


def test_the_collate_function_is_checked_too() -> None:
    def collate(samples: list[float]) -> list[float]:
        random.shuffle(samples)
        return samples

    with pytest.warns(DataWarning, match="random"):
        assert must_leave_threads(Samples(lambda: 1.0), collate, is_map=True)


class Failing(Samples):
    """Some samples fail before they have drawn."""

    def __init__(self, draw: Callable[[], Any], bad: Callable[[int], bool]) -> None:
        super().__init__(draw)
        self.bad = bad

    def __getitem__(self, index: int) -> float:
        if self.bad(index):
            raise OSError(f"no such file: {index}")
        return super().__getitem__(index)


@pytest.mark.parametrize(
    "bad",
    [lambda index: index == 0, lambda index: index < 99, lambda index: index in (0, 33, 66, 99)],
    ids=["first", "all but the last", "all that are tried first"],
)
def test_a_sample_that_fails_does_not_hide_what_others_draw(bad: Callable[[int], bool]) -> None:
    with pytest.warns(DataWarning, match="random"):
        assert must_leave_threads(Failing(random.random, bad), None, is_map=True)


def test_streams_are_not_checked() -> None:
    class Once:
        def __iter__(self) -> Any:
            raise AssertionError("it may be a queue, which loses what is read")

    assert not must_leave_threads(Once(), None, is_map=False)


# -- in the loaders ---


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_workers_become_processes_and_the_warning_points_to_the_users_line(kind: Any) -> None:
    count = {"workers": 2} if kind is Loader else {"num_workers": 2}
    loader = kind(Samples(random.random, 8), 2, engine="thread", seed=3, **count)
    with pytest.warns(DataWarning) as warned:
        batches = [batch.tolist() for batch in loader]
    own = [warning for warning in warned if warning.category is DataWarning]  # Python warns about forks too
    assert [warning.filename for warning in own] == [__file__]
    assert loader.stats()["engine"] == "process"
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        loader.set_epoch(0)
        assert [batch.tolist() for batch in loader] == batches, "no second warning, and reproducible"
