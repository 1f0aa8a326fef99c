"""Whether a dataset can keep its promises on threads."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from feedline import DataLoader, Loader, rng
from feedline.errors import SharedGenerators
from feedline.loader.threads_probe import must_leave_threads


class Samples:
    """Calls a function for each sample; notes which were asked for."""

    def __init__(self, draw: Callable[[], Any], count: int = 100) -> None:
        self.draw = draw
        self.count = count
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> float:
        self.asked.append(index)
        return float(self.draw())


GENERATORS: dict[str, Callable[[], Any]] = {
    "random": random.random,
    "numpy.random": np.random.rand,
    "torch": lambda: torch.rand(()),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_dataset_that_draws_from_generators_of_the_process_is_noticed(name: str) -> None:
    with pytest.warns(SharedGenerators, match=f"Samples draws random numbers from {name}, .*feedline.rng"):
        assert must_leave_threads(Samples(GENERATORS[name]), None, is_map=True)


def test_all_generators_are_named() -> None:
    def draw() -> float:
        return random.random() + np.random.rand() + torch.rand(()).item()

    with pytest.warns(SharedGenerators, match=r"random and numpy.random and torch, which"):
        must_leave_threads(Samples(draw), None, is_map=True)


OWN = np.random.default_rng(0)


@pytest.mark.parametrize("draw", [lambda: 1.0, lambda: rng().random(), OWN.random])
def test_others_stay_on_threads_without_a_word(draw: Callable[[], Any]) -> None:
    assert not must_leave_threads(Samples(draw), None, is_map=True)


def test_the_collate_function_is_looked_at_as_well() -> None:
    def collate(samples: list[float]) -> list[float]:
        random.shuffle(samples)
        return samples

    with pytest.warns(SharedGenerators, match="random"):
        assert must_leave_threads(Samples(lambda: 1.0), collate, is_map=True)


def test_the_callers_generators_are_given_back() -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    with pytest.warns(SharedGenerators):
        must_leave_threads(Samples(random.random), None, is_map=True)
    assert random.random() == expected


@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000])
def test_a_few_samples_are_asked_for_from_all_over(count: int) -> None:
    dataset = Samples(lambda: 1.0, count)
    assert not must_leave_threads(dataset, None, is_map=True)
    assert len(dataset.asked) <= 4
    if count:
        assert {0, count - 1} <= set(dataset.asked) <= set(range(count))


def test_what_is_wrong_with_a_sample_is_said_by_its_worker() -> None:
    def fail() -> float:
        raise OSError("no such file")

    assert not must_leave_threads(Samples(fail), None, is_map=True)


def test_streams_are_not_looked_at() -> None:
    class Once:
        def __iter__(self) -> Any:
            raise AssertionError("it may be a queue: what is read is gone")

    assert not must_leave_threads(Once(), None, is_map=False)


# -- in the loaders ---


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_the_workers_become_processes_and_the_user_is_told_where(kind: Any) -> None:
    count = {"workers": 2} if kind is Loader else {"num_workers": 2}
    loader = kind(Samples(random.random, 8), 2, engine="thread", seed=3, **count)
    with pytest.warns(SharedGenerators) as told:
        batches = [batch.tolist() for batch in loader]
    own = [warning for warning in told if warning.category is SharedGenerators]  # Python warns of forks, too
    assert [warning.filename for warning in own] == [__file__]
    assert loader.stats()["engine"] == "process"
    with warnings.catch_warnings():
        warnings.simplefilter("error", SharedGenerators)
        loader.set_epoch(0)
        assert [batch.tolist() for batch in loader] == batches, "told once, and reproducible"


@pytest.mark.parametrize("seed", [None, 3])
def test_threads_are_kept_where_nothing_speaks_against_them(seed: int | None) -> None:
    draw = random.random if seed is None else lambda: rng().random()
    loader = Loader(Samples(draw, 8), 2, workers=2, engine="thread", seed=seed)
    list(loader)
    assert loader.stats()["engine"] == "thread"
