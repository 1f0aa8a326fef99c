"""Mixtures of map-style datasets: the index determines the sample."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import feedline
from feedline.datasets import ArrayDataset
from feedline.datasets.derived.mixture import Mixture, Orders
from feedline.errors import BadOption
from feedline.types import EngineName
from tests.sampling import examples


def named(*sizes: int) -> list[list[tuple[int, int]]]:
    return [[(number, index) for index in range(size)] for number, size in enumerate(sizes)]


mixtures = st.builds(
    lambda parts, size, seed: Mixture(named(*[n for n, _ in parts]), [w for _, w in parts], size, seed),
    st.lists(st.tuples(st.integers(1, 40), st.floats(0.1, 10)), min_size=1, max_size=4),
    st.none() | st.integers(1, 150),
    st.integers(0, 2**64),
)


@settings(max_examples=examples(40))
@given(mixtures, st.integers(1, 3))
def test_a_dataset_is_exhausted_before_it_repeats_even_across_epochs(mixture: Mixture, epochs: int) -> None:
    samples = []
    for epoch in range(epochs):
        mixture.set_epoch(epoch)
        samples += [mixture[index] for index in range(len(mixture))]
    shares = np.array(mixture.weights) / sum(mixture.weights)
    for number, dataset in enumerate(mixture.datasets):
        own = [sample for sample in samples if sample[0] == number]
        assert abs(len(own) - shares[number] * len(samples)) < 3
        for start in range(0, len(own), len(dataset)):
            one = own[start : start + len(dataset)]
            assert len(set(one)) == len(one)


@settings(max_examples=examples(40))
@given(mixtures, st.data())
def test_getitems_equals_getitem(mixture: Mixture, data: st.DataObject) -> None:
    indices = data.draw(st.lists(st.integers(-len(mixture), len(mixture) - 1), max_size=20))
    mixture.set_epoch(data.draw(st.integers(0, 5)))
    assert mixture._several_places(indices) == [mixture.locate(index) for index in indices]
    assert [mixture[index] for index in indices] == [mixture.locate(index) for index in indices]


def test_the_order_depends_only_on_seed_epoch_and_weights() -> None:
    def order(seed: int = 0, epoch: int = 0, weights: Any = (1, 2)) -> list[Any]:
        mixture = Mixture(named(50, 50), None, 60, seed)
        mixture.set_weights(weights)
        mixture.set_epoch(epoch)
        return list(mixture)

    assert order() == order()
    orders = [order(), order(seed=1), order(epoch=1), order(weights=None), order(weights=[2, 1])]
    assert len({tuple(one) for one in orders}) == len(orders)
    assert order(weights=[10, 20]) == order()


def test_default_weights_are_equal_and_the_default_size_is_the_sum() -> None:
    mixture = Mixture(named(10, 90), None, None, 0)
    assert len(mixture) == 100
    counts = Counter(number for number, _ in mixture)
    assert counts[0] == pytest.approx(50, abs=1)


class Batched:
    """Returns several samples per call, and records the calls."""

    def __init__(self, name: str, count: int) -> None:
        self.name = name
        self.count = count
        self.epoch = -1
        self.calls: list[list[int]] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> str:
        return f"{self.name}{index}"

    def __getitems__(self, indices: Iterable[int]) -> list[str]:
        self.calls.append(list(indices))
        return [self[index] for index in self.calls[-1]]

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_samples_are_read_together_if_all_datasets_support_it() -> None:
    parts = [Batched("a", 20), Batched("b", 30)]
    mixture = Mixture(parts, None, None, 0)
    assert mixture.__getitems__ is not None
    indices = [3, 1, 49, 1, -1]
    assert mixture.__getitems__(indices) == [mixture[index] for index in indices]
    assert all(len(part.calls) <= 1 for part in parts)
    with pytest.raises(IndexError, match="index 50 is out of range for a mixture of 50 samples"):
        mixture.__getitems__([0, 50])
    assert Mixture([parts[0], [1, 2]], None, None, 0).__getitems__ is None


def test_set_epoch_is_passed_on_to_the_datasets() -> None:
    parts: list[Any] = [Batched("a", 2), [1, 2]]
    Mixture(parts, None, None, 0).set_epoch(7)
    assert parts[0].epoch == 7


@pytest.mark.parametrize("index", [5, -6])
def test_indices_out_of_range(index: int) -> None:
    mixture = Mixture(named(2, 3), None, None, 0)
    with pytest.raises(IndexError, match=f"index {index} is out of range for a mixture of 5"):
        mixture[index]
    assert mixture[np.int64(-1)] == mixture[torch.tensor(4)] == mixture[4]  # type: ignore[index]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1], "1 weights for 2 datasets"),
        ([1, -0.5], r"weights\[1\]=-0.5 is not a weight"),
        ([float("nan"), 1], r"weights\[0\]=nan"),
        ([float("inf"), 1], r"weights\[0\]=inf"),
        ([0, 0], "all 0"),
        (3, "not a list of numbers"),
        (["a", "b"], "not a list of numbers"),
    ],
)
def test_bad_weights_are_rejected(weights: Any, message: str) -> None:
    mixture = Mixture(named(2, 3), [1, 2], None, 0)
    with pytest.raises(BadOption, match=message):
        mixture.set_weights(weights)
    assert mixture.weights == [1, 2]


def test_rejects_an_empty_dataset_with_a_weight() -> None:
    with pytest.raises(BadOption, match=r"datasets\[1\] is empty but has the weight 1.0"):
        Mixture(named(2, 0), None, None, 0)
    assert {number for number, _ in Mixture(named(2, 0), [1, 0], 10, 0)} == {0}


def test_pickle_and_repr() -> None:
    mixture = Mixture(named(5, 5), [0.5, 1], None, 3)
    mixture.set_epoch(2)
    assert list(pickle.loads(pickle.dumps(mixture))) == list(mixture)
    assert repr(mixture) == "Mixture(10 samples of 2 datasets, weights=[0.5, 1], seed=3)"


@pytest.mark.sample(5)
def test_in_loaders(engine: EngineName) -> None:
    mixture = Mixture([ArrayDataset(np.arange(0, 30)), ArrayDataset(np.arange(100, 110))], [3, 1], 40, 1)
    expected = [int(sample) for sample in mixture]
    workers = 0 if engine == "inline" else 2
    loader = feedline.Loader(mixture, 8, workers=workers, engine=engine)
    assert [int(value) for batch in loader for value in batch] == expected
    loader.close()


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, feedline.DataLoader])
@pytest.mark.parametrize("parts", [named(10, 5), [Batched("a", 10), Batched("b", 5)]], ids=["single", "several"])
def test_in_torch_s_loaders(kind: Any, parts: Any) -> None:
    mixture = Mixture(parts, None, None, 1)
    loader = kind(mixture, batch_size=4, collate_fn=list)
    assert [sample for batch in loader for sample in batch] == list(mixture)


# -- orders: no index repeats before all have come ---


@settings(max_examples=examples(40))
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 2**64 - 1))
def test_every_pass_has_each_index_once(sizes: list[int], key: int) -> None:
    passes = Orders(sizes, key)
    for number, size in enumerate(sizes):
        turns = np.arange(4 * size)
        indices = passes.at(np.full(len(turns), number), turns)
        assert indices.tolist() == [passes.one(number, turn) for turn in turns.tolist()]
        for one in indices.reshape(4, size):
            assert sorted(one.tolist()) == list(range(size))


def test_each_pass_and_dataset_has_its_own_order() -> None:
    passes = Orders([20, 20], 1)
    orders = [[passes.one(number, turn + 20 * count) for turn in range(20)] for number in (0, 1) for count in (0, 1, 2)]
    assert len(set(map(tuple, orders))) == 6


@pytest.mark.parametrize("size", [2**32, 2**32 + 1, 2**62])
def test_large_datasets(size: int) -> None:
    passes = Orders([3, size], 1)
    numbers, turns = np.array([1, 0, 1, 1]), np.array([0, 7, size - 1, size])
    indices = passes.at(numbers, turns).tolist()
    assert indices == [passes.one(*pair) for pair in zip(numbers.tolist(), turns.tolist(), strict=True)]
    assert all(0 <= index < size for index in indices)
    assert len(set(indices)) == 4
