"""Seeds, and passes that are shuffled separately."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline.errors import BadOption
from feedline.samplers import (
    InfiniteSampler,
    LengthBucketBatchSampler,
    RandomSampler,
    StratifiedBatchSampler,
    SubsetRandomSampler,
    TokenBudgetBatchSampler,
    WeightedRandomSampler,
)
from feedline.samplers.seeded import Seeded

torch = pytest.importorskip("torch")


def makers(**source: object) -> list[Seeded]:
    return [
        RandomSampler(range(50), **source),  # type: ignore[arg-type]
        SubsetRandomSampler(range(50), **source),  # type: ignore[arg-type]
        InfiniteSampler(range(50), **source),  # type: ignore[arg-type]
        WeightedRandomSampler(range(1, 50), 50, **source),  # type: ignore[arg-type]
    ]


def first_fifty(sampler: Seeded) -> list[int]:
    return [index for index, _ in zip(sampler, range(50), strict=False)]


def test_orders_are_determined_by_a_given_generator() -> None:
    for kind in (lambda: torch.Generator().manual_seed(4), lambda: np.random.default_rng(4)):
        for number in range(4):
            one, other = (makers(generator=kind())[number] for _ in range(2))
            epochs = [first_fifty(one), first_fifty(one)]
            assert epochs[0] != epochs[1]
            assert epochs == [first_fifty(other), first_fifty(other)]


def test_without_a_seed_torchs_default_generator_decides() -> None:
    for sampler in makers():
        torch.manual_seed(9)
        first = first_fifty(sampler)
        again = first_fifty(sampler)
        torch.manual_seed(9)
        sampler.set_epoch(0)
        assert first_fifty(sampler) == first
        assert again != first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop_last": 0}, "drop_last=0 is not True or False"),
        ({"shuffle": "yes"}, "shuffle='yes' is not True or False"),
        ({"seed": 1, "generator": np.random.default_rng(1)}, "seed=1 and generator=.*Drop one of them"),
    ],
)
def test_rejects_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(BadOption, match=message):
        StratifiedBatchSampler([0, 1], 2, **options)


@pytest.mark.parametrize("make", [LengthBucketBatchSampler, StratifiedBatchSampler, TokenBudgetBatchSampler])
def test_rejects_a_sampler_as_lengths_or_labels(make: Any) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    for sampler in (RandomSampler(range(9)), torch_data.DistributedSampler(range(9), 2, 0)):
        with pytest.raises(BadOption, match=rf"is a {type(sampler).__name__}\. .*distribute"):
            make(sampler, 4)
