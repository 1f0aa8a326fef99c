"""Whether what a worker makes depends on which worker it is."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import get_worker_info

from feedline.engines.bonds import Bonds, holds_generator
from feedline.frameworks.torch import TorchFramework, set_thread_worker
from feedline.randomness.global_states import globals_kept, seed_globals
from feedline.types import DatasetKind, WorkerSpec


class Holder:
    def __init__(self, held: Any) -> None:
        self.held = held

    def collate(self, samples: list[Any]) -> list[Any]:
        return samples


def spec_of(dataset: Any, collate: Callable[[Any], Any] = list) -> WorkerSpec:
    return WorkerSpec(dataset, DatasetKind.MAP, collate, TorchFramework(), worker_count=2, base_seed=0)


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    with globals_kept():
        seed_globals(7)
        set_thread_worker(None)  # torch's function remembers from the first worker on
        TorchFramework().forget_asking()
        yield
        TorchFramework().forget_asking()


def test_a_dataset_that_draws_nothing_is_not_bound() -> None:
    bonds = Bonds([1, 2], spec_of([1, 2]))
    assert not bonds.are_there()
    assert not bonds.are_there()


def test_drawing_from_a_generator_of_the_process_binds() -> None:
    bonds = Bonds([1, 2], spec_of([1, 2]))
    assert not bonds.are_there()
    random.random()
    assert bonds.are_there()


def test_asking_for_the_worker_binds() -> None:
    bonds = Bonds([1, 2], spec_of([1, 2]))
    assert not bonds.are_there()
    assert get_worker_info() is None
    assert bonds.are_there()


GENERATORS: dict[str, Callable[[], Any]] = {
    "python": lambda: random.Random(3),
    "numpy": lambda: np.random.default_rng(3),
    "numpy, bits": lambda: np.random.PCG64(3),
    "numpy, old": lambda: np.random.RandomState(3),
    "torch": lambda: torch.Generator().manual_seed(3),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_of_its_own_binds(name: str) -> None:
    generator = GENERATORS[name]()
    for dataset in (Holder(generator), Holder([Holder({"rng": generator})])):
        assert Bonds(dataset, spec_of(dataset)).are_there()
    collates: list[Callable[[Any], Any]] = [Holder(generator).collate, functools.partial(list, generator)]
    for collate in collates:
        assert Bonds([1], spec_of([1], collate)).are_there()


def test_one_that_comes_with_the_first_sample_binds() -> None:
    dataset = Holder(None)
    bonds = Bonds(dataset, spec_of(dataset))
    dataset.held = np.random.default_rng(3)
    assert bonds.are_there()


def test_a_dataset_with_a_state_is_bound() -> None:
    class Counting(Holder):
        def state_dict(self) -> dict[str, int]:
            return {}

        def load_state_dict(self, state: dict[str, int]) -> None:
            raise AssertionError

    dataset = Counting(None)
    assert Bonds(dataset, spec_of(dataset)).are_there()


@pytest.mark.parametrize("held", [None, 3, "text", list(range(10_000)), list, print, random, np.arange(3)])
def test_other_things_are_no_generators(held: Any) -> None:
    assert not holds_generator(held)
    assert not holds_generator(Holder(held))


def test_what_cannot_be_looked_through_may_hold_one() -> None:
    class Odd(dict[str, int]):
        __slots__ = ()

    class Meta(type):
        @property
        def __mro__(cls) -> Any:
            raise RuntimeError("no classes")

    class Strange(metaclass=Meta):
        pass

    assert not holds_generator(Odd(a=1))
    assert holds_generator(Strange())
