"""Which order follows from the arguments of torch's loader."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
)

import feedline
from feedline import samplers

NUMBERS: Any = range(10)


# -- torch's samplers, exactly ---


class SkipBatchSampler:
    """A stand-in for Accelerate's."""

    __module__ = "accelerate.data_loader"

    def __init__(self, batch_sampler: Any, skip_batches: int) -> None:
        self.batch_sampler = batch_sampler
        self.skip_batches = skip_batches

    def __iter__(self) -> Any:
        return itertools.islice(self.batch_sampler, self.skip_batches, None)

    def __len__(self) -> int:
        return len(self.batch_sampler) - self.skip_batches


class Drawing(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 7

    def __getitem__(self, index: int) -> Any:
        return index, feedline.rng().random()


@pytest.mark.parametrize("skips", [0, 1, 3, 4])
@pytest.mark.parametrize("kind", ["feedline's", "torch's", "foreign"])
def test_batches_that_accelerate_skips_are_not_delivered(kind: str, skips: int) -> None:
    def batches(skips: int) -> Any:
        sampler: Any = {
            "feedline's": samplers.RandomSampler(range(7), seed=3),
            "torch's": RandomSampler(NUMBERS[:7], generator=torch.Generator().manual_seed(0)),
            "foreign": [6, 5, 4, 3, 2, 1, 0],
        }[kind]
        whole: Any = BatchSampler(sampler, 2, False)
        return feedline.DataLoader(Drawing(), batch_sampler=SkipBatchSampler(whole, skips), seed=1)

    whole = [[values.tolist() for values in batch] for batch in batches(0)]
    loader = batches(skips)
    assert len(loader) == len(whole) - skips
    assert [[values.tolist() for values in batch] for batch in loader] == whole[skips:]
