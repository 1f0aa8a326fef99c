"""Stratified batches: proportions in every batch, every sample in an epoch, any batch by its number."""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import feedline
from feedline.errors import BadOption
from feedline.samplers.distributed import distribute
from feedline.samplers.stratified import Mode, StratifiedBatchSampler
from feedline.types import Key, Tail
from tests.samplers.chi_square import assert_fits
from tests.sampling import examples

label_lists = st.lists(st.integers(0, 9) | st.just(0), min_size=1, max_size=150)
batch_sizes = st.integers(1, 40)
seeds = st.integers(0, 2**64)


def counts_of(labels: list[int], batch: list[int]) -> NDArray[np.int64]:
    return np.bincount(np.array(labels)[batch], minlength=10)


@given(label_lists, batch_sizes, st.booleans(), st.booleans(), seeds)
def test_every_batch_has_the_proportions_of_the_dataset(
    labels: list[int], batch_size: int, drop_last: bool, shuffle: bool, seed: int
) -> None:
    sampler = StratifiedBatchSampler(labels, batch_size, drop_last=drop_last, shuffle=shuffle, seed=seed)
    batches = list(sampler)
    whole, rest = divmod(len(labels), batch_size)
    assert [len(batch) for batch in batches] == [batch_size] * whole + [rest] * (rest > 0 and not drop_last)
    assert len(sampler) == len(batches)
    indices = [index for batch in batches for index in batch]
    assert len(set(indices)) == len(indices)
    shares = np.bincount(labels, minlength=10) / len(labels)
    for batch in batches:
        assert np.abs(counts_of(labels, batch) - len(batch) * shares).max() < 1.5


@given(label_lists, st.integers(10, 40), st.booleans(), seeds)
def test_every_batch_has_each_class(labels: list[int], batch_size: int, shuffle: bool, seed: int) -> None:
    sampler = StratifiedBatchSampler(labels, batch_size, mode="each", shuffle=shuffle, seed=seed)
    batches = list(sampler)
    sizes = np.bincount(labels, minlength=10)
    assert all(len(batch) == batch_size for batch in batches)
    assert all((counts_of(labels, batch) > 0).tolist() == (sizes > 0).tolist() for batch in batches)
    # Every sample comes, and fewer batches would not be enough.
    assert {index for batch in batches for index in batch} == set(range(len(labels)))
    fewer = len(batches) - 1
    assert fewer == 0 or np.maximum(sizes, fewer)[sizes > 0].sum() > fewer * batch_size
    # Places beyond one per class are divided in proportion.
    counts = np.array([counts_of(labels, batch) for batch in batches])
    assert (counts.max(axis=0) - counts.min(axis=0)).max() <= 1


@settings(max_examples=examples(40))
@given(label_lists, st.integers(10, 40), st.sampled_from(["proportional", "each"]), st.data())
def test_batches_by_number_equal_those_of_iteration(
    labels: list[int], batch_size: int, mode: Mode, data: st.DataObject
) -> None:
    sampler = StratifiedBatchSampler(labels, batch_size, mode=mode, seed=3)
    epochs = [list(sampler), list(sampler)]
    fresh = StratifiedBatchSampler(labels, batch_size, mode=mode, seed=3)
    for number, epoch in data.draw(
        st.lists(st.tuples(st.integers(0, len(sampler) - 1), st.integers(0, 1)), max_size=10)
    ):
        batch = fresh.batch(number, Key(3, epoch))
        assert batch.dtype == np.int64
        assert batch.tolist() == epochs[epoch][number]
        batch[:] = -1  # the array belongs to the caller


@pytest.mark.parametrize("mode", ["proportional", "each"])
@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
def test_ranks_share_the_batches(mode: Mode, tail: Tail) -> None:
    labels = np.arange(1000) % 7 * (np.arange(1000) % 3)
    sampler = StratifiedBatchSampler(labels, 20, mode=mode, seed=5)
    whole = [sampler.batch(number, Key(5, 0)).tolist() for number in range(len(sampler))]
    for world_size in (2, 3, 7):
        ranks = [list(distribute(sampler, rank, world_size, tail=tail)) for rank in range(world_size)]
        assert len({len(batches) for batches in ranks}) == 1
        together = [batch for step in zip(*ranks, strict=True) for batch in step]
        complete = len(whole) // world_size * world_size
        assert together[:complete] == whole[:complete]


def test_strided_batches_are_computed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = StratifiedBatchSampler(np.arange(100_000) % 50, 100, seed=1)
    made: list[int] = []
    original = StratifiedBatchSampler._samples

    def counting(self: Any, row: Any, numbers: Any, *rest: Any) -> Any:
        made.append(len(numbers))
        return original(self, row, numbers, *rest)

    monkeypatch.setattr(StratifiedBatchSampler, "_samples", counting)
    for number in range(5, len(sampler), 8):
        sampler.batch(number, Key(1, 0))
    assert sum(made) < 2 * len(sampler) / 8 + 100


def test_epochs_differ_and_are_reproducible_by_seed() -> None:
    labels = [0] * 60 + [1] * 30 + [2] * 10
    sampler, twin = (StratifiedBatchSampler(labels, 10, seed=7) for _ in range(2))
    epochs = [list(sampler) for _ in range(3)]
    assert epochs == [list(twin) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert {frozenset(batch) for batch in epochs[0]} != {frozenset(batch) for batch in epochs[1]}
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1]
    assert list(StratifiedBatchSampler(labels, 10, seed=8)) != epochs[0]


def test_a_given_generator_determines_the_order() -> None:
    labels = [0, 1] * 50
    generator = torch.Generator()
    orders = []
    for seed in (1, 1, 2):
        generator.manual_seed(seed)
        orders.append(list(StratifiedBatchSampler(labels, 10, generator=generator)))
    assert orders[0] == orders[1] != orders[2]


@pytest.mark.slow
def test_samples_are_uniform_over_batches_and_positions() -> None:
    labels = [0] * 12 + [1] * 6 + [2] * 2
    sampler = StratifiedBatchSampler(labels, 5, seed=1)
    found = np.array([[sampler.batch(number, Key(1, epoch)) for number in range(4)] for epoch in range(1000)])
    for sample in range(20):
        assert_fits((found == sample).sum(axis=(0, 2)))
        assert_fits((found == sample).sum(axis=(0, 1)))


@pytest.mark.slow
def test_pairs_of_samples_of_a_class_are_uniform() -> None:
    sampler = StratifiedBatchSampler([0] * 6 + [1] * 3, 3, seed=1)
    pairs = np.zeros((6, 6))
    for epoch in range(800):
        for number in range(3):
            first, second = sorted(index for index in sampler.batch(number, Key(1, epoch)).tolist() if index < 6)
            pairs[first, second] += 1
    assert_fits(pairs[np.triu_indices(6, 1)])


def test_left_out_samples_differ_from_epoch_to_epoch() -> None:
    labels = [0] * 50 + [1]
    sampler = StratifiedBatchSampler(labels, 10, drop_last=True, seed=1)
    missing = [set(range(51)) - {index for batch in sampler for index in batch} for _ in range(200)]
    assert all(len(left_out) == 1 for left_out in missing)
    assert len(set.union(*missing)) > 45
    assert {50} in missing


def test_samples_of_rare_classes_all_come_before_any_repeats() -> None:
    labels = [0] * 100 + [1] * 3
    sampler = StratifiedBatchSampler(labels, 5, mode="each", seed=2)
    rare = [index for batch in sampler for index in batch if index >= 100]
    assert len(rare) == len(sampler) == 25
    passes = [tuple(rare[start : start + 3]) for start in range(0, 24, 3)]
    assert all(sorted(one) == [100, 101, 102] for one in passes)
    assert len(set(passes)) > 2


def test_rare_classes_are_spread_over_the_epoch() -> None:
    labels = [0] * 990 + [1] * 10
    sampler = StratifiedBatchSampler(labels, 10, seed=1)
    for _ in range(5):
        places = [number for number, batch in enumerate(sampler) if max(batch) >= 990]
        assert len(places) == 10
        assert min(np.diff([*places, places[0] + 100])) >= 5


@pytest.mark.parametrize("mode", ["proportional", "each"])
def test_without_shuffling_epochs_are_the_same(mode: Mode) -> None:
    sampler = StratifiedBatchSampler(list("aababcaab"), 4, mode=mode, shuffle=False)
    batches = list(sampler)
    assert batches == list(sampler)
    assert all(batch == sorted(batch) for batch in batches)


@pytest.mark.parametrize(
    "labels", [torch.tensor([3, 4] * 5), np.array([3, 4] * 5), ("x", "y") * 5, [False, True] * 5], ids=repr
)
def test_labels_of_any_form(labels: Any) -> None:
    plain = StratifiedBatchSampler([0, 1] * 5, 2, seed=1)
    assert list(StratifiedBatchSampler(labels, 2, seed=1)) == list(plain)


def test_a_dataset_smaller_than_a_batch() -> None:
    assert sorted(next(iter(StratifiedBatchSampler([0, 1, 1], 8)))) == [0, 1, 2]
    empty = StratifiedBatchSampler([0, 1, 1], 8, drop_last=True)
    assert len(empty) == 0
    assert list(empty) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": []}, "labels is empty"),
        ({"labels": [0.0, float("nan")]}, r"labels\[1\]"),
        ({"batch_size": 0}, "batch_size=0 is not a positive integer"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
        ({"batch_size": True}, "batch_size=True"),
        ({"mode": "equal"}, "mode='equal' is not one of 'proportional', 'each'"),
        ({"mode": "each"}, "each of the 3 classes.*batch_size=2.*at least 3"),
        ({"drop_last": 1}, "drop_last=1 is not True or False"),
        ({"shuffle": None}, "shuffle=None"),
        ({"seed": 1, "generator": np.random.default_rng(1)}, "both given"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_rejects_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        StratifiedBatchSampler(**{"labels": [0, 1, 2, 2], "batch_size": 2, **arguments})


def test_rejects_numbers_beyond_the_end() -> None:
    sampler = StratifiedBatchSampler([0, 1, 1], 2, seed=1)
    for number in (-1, 2):
        with pytest.raises(IndexError, match="not among the 2 batches"):
            sampler.batch(number, Key(1, 0))


def test_pickle_description_and_repr() -> None:
    sampler = StratifiedBatchSampler([0, 1] * 50, 10, mode="each", seed=1)
    list(sampler)
    sampler.set_epoch(0)
    twin = pickle.loads(pickle.dumps(sampler))
    assert list(twin) == list(sampler)
    assert len(pickle.dumps(StratifiedBatchSampler(np.arange(1000) % 2, 500))) < 10_000
    described = json.dumps(sampler.describe())
    assert described == json.dumps(twin.describe())
    others = [
        StratifiedBatchSampler([0, 1] * 50, 10),
        StratifiedBatchSampler([0, 1] * 50, 11, mode="each"),
        StratifiedBatchSampler([0] * 50 + [1] * 50, 10, mode="each"),
        StratifiedBatchSampler([0, 1] * 50, 10, mode="each", shuffle=False),
    ]
    assert all(json.dumps(other.describe()) != described for other in others)
    assert repr(sampler) == "StratifiedBatchSampler(100 labels of 2 classes, batch_size=10, mode='each', seed=1)"
    assert repr(others[3]).endswith("shuffle=False)")


@pytest.mark.slow
def test_many_classes_are_fast() -> None:
    labels = np.random.default_rng(0).integers(0, 1000, 100_000)
    sampler = StratifiedBatchSampler(labels, 256, seed=1)
    started = time.process_time()
    for number in range(256):
        sampler.batch(number, Key(1, 0))
    assert (time.process_time() - started) / 256 < 1e-3  # 0.08 ms on an idle machine


def test_torchs_loader_and_feedlines_give_the_same_batches() -> None:
    labels = [0] * 30 + [1] * 10
    sampler = StratifiedBatchSampler(labels, 8, seed=1)
    expected = list(sampler)
    for kind in (torch.utils.data.DataLoader, feedline.DataLoader):
        sampler.set_epoch(0)
        assert [batch.tolist() for batch in kind(range(40), batch_sampler=sampler)] == expected  # type: ignore[arg-type]
