"""Keys: mixing is a bijection, and the array form gives the same result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline
from feedline import datasets
from feedline.datasets import JSONLines, ParquetDataset, TarDataset, TFRecordDataset
from feedline.errors import BadOption
from feedline.randomness.keys import epoch_key, mix, mix_array
from feedline.samplers import DistributedSampler, RandomSampler
from tests.samplers.chi_square import assert_fits

words = st.integers(0, 2**64 - 1)


@given(words, st.lists(st.integers(0, 2**63 - 1)))
def test_the_array_form_gives_the_same_keys(key: int, numbers: list[int]) -> None:
    mixed = mix_array(key, np.array(numbers, np.int64))
    assert mixed.dtype == np.uint64
    assert mixed.tolist() == [mix(key, number) for number in numbers]


@pytest.mark.parametrize("key", [0, 7, 2**64 - 1])
def test_no_two_numbers_share_a_key(key: int) -> None:
    assert len(np.unique(mix_array(key, np.arange(100_000)))) == 100_000


@pytest.mark.parametrize("key", [0, 1, 0xDEADBEEF])
def test_every_bit_is_evenly_distributed(key: int) -> None:
    mixed = mix_array(key, np.arange(1 << 15))
    ones = np.array([int((mixed >> np.uint64(bit) & np.uint64(1)).sum()) for bit in range(64)])
    assert abs(ones - (1 << 14)).max() < 5 * np.sqrt(1 << 13)
    assert_fits(np.bincount((mixed >> np.uint64(56)).astype(np.int64), minlength=256))


def test_neighbouring_keys_give_independent_results() -> None:
    differing = [(mix(key, 5) ^ mix(key + 1, 5)).bit_count() for key in range(2000)]
    assert 31 < np.mean(differing) < 33


def test_seeds_of_any_length_and_epochs_all_count() -> None:
    seeds = [0, 1, 2**32, 2**63, 2**64, 2**64 + 1, 2**127, 2**128, 2**200]
    keys = {epoch_key(seed, epoch) for seed in seeds for epoch in range(50)}
    assert len(keys) == 50 * len(seeds)


# Any: the options of each class are its own.
TAKERS: dict[str, Callable[[Any], object]] = {
    "tar": lambda seed: TarDataset("a.tar").stream(shuffle=True, seed=seed),
    "tfrecord": lambda seed: TFRecordDataset("a.tfrecord").stream(shuffle=True, seed=seed),
    "Parquet": lambda seed: ParquetDataset("a.parquet").stream(shuffle=True, seed=seed),
    "lines": lambda seed: JSONLines("a.jsonl").stream(shuffle=True, seed=seed),
    "mix": lambda seed: datasets.mix([[1], [2]], seed=seed),
    "mix of streams": lambda seed: datasets.mix([TarDataset("a.tar").stream()], seed=seed),
    "split": lambda seed: feedline.split([1, 2], [0.5, 0.5], seed=seed),
    "shuffle": lambda seed: feedline.pipe([1, 2]).shuffle(seed=seed),
    "window_shuffle": lambda seed: feedline.pipe([1, 2]).window_shuffle(2, seed=seed),
    "pipe.mix": lambda seed: feedline.pipe([1, 2]).mix([3], seed=seed),
    "sampler": lambda seed: RandomSampler([1, 2], seed=seed),
    "DistributedSampler": lambda seed: DistributedSampler([1, 2], 1, 0, seed=seed),
    "DataLoader": lambda seed: feedline.DataLoader([1, 2], seed=seed),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_a_seed_that_is_not_an_integer_is_rejected(taker: str) -> None:
    for seed in ("a", 1.5, True):
        with pytest.raises(BadOption, match=f"seed={seed!r} is not an integer"):
            TAKERS[taker](seed)
