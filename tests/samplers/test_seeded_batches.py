"""What batch samplers with a random order have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.samplers import (
    LengthBucketBatchSampler,
    RandomSampler,
    StratifiedBatchSampler,
    TokenBudgetBatchSampler,
)
from feedline.samplers.seeded_batches import SeededBatches, check_batch_size
from feedline.types import Key


class Two(SeededBatches):
    def size(self) -> int:
        return 2

    def batch(self, number: int, key: Key) -> IndexArray:
        self._check_number(number)
        return np.array([number])

    def __repr__(self) -> str:
        return f"Two({self._options().removeprefix(', ')})"


def make(**options: Any) -> Two:
    return Two(**{"drop_last": False, "shuffle": True, "seed": None, "generator": None, **options})


def test_options_are_kept_and_told() -> None:
    assert repr(make()) == "Two()"
    sampler = make(drop_last=np.True_, shuffle=False, seed=np.int64(3))
    assert (sampler.drop_last, sampler.shuffle, sampler.seed) == (True, False, 3)
    assert repr(sampler) == "Two(drop_last=True, shuffle=False, seed=3)"
    generator = np.random.default_rng(1)
    assert make(generator=generator).generator is generator
    assert "generator=Generator(PCG64)" in repr(make(generator=generator))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_last": 0}, "drop_last=0 is not True or False"),
        ({"shuffle": "yes"}, "shuffle='yes' is not True or False"),
        ({"seed": 1, "generator": np.random.default_rng(1)}, "seed=1 and generator=.*Drop one of them"),
    ],
)
def test_what_cannot_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        make(**options)


def test_a_seed_is_an_integer() -> None:
    with pytest.raises(TypeError):
        make(seed=1.5)


@pytest.mark.parametrize("number", [-1, 2])
def test_batches_that_do_not_exist(number: int) -> None:
    with pytest.raises(IndexError, match="not among the 2 batches of an epoch, 0 to 1"):
        make().batch(number, Key(0, 0))


def test_batch_sizes() -> None:
    assert type(check_batch_size(np.int32(4))) is int
    for wrong in (0, -1, 2.0, True, "3", None):
        with pytest.raises(BadOption, match=r"most=.* is not a positive integer"):
            check_batch_size(wrong, "most")


@pytest.mark.parametrize("make", [LengthBucketBatchSampler, StratifiedBatchSampler, TokenBudgetBatchSampler])
def test_a_sampler_is_not_taken_for_lengths_or_labels(make: Any) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    for sampler in (RandomSampler(range(9)), torch_data.DistributedSampler(range(9), 2, 0)):
        with pytest.raises(BadOption, match=f"is a {type(sampler).__name__}: .*distribute"):
            make(sampler, 4)
