"""Samplers that can start at any position and use no memory. Those named as in torch take torch's arguments."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feedline.samplers.balanced import BalancedBatches
    from feedline.samplers.batch import BatchSampler
    from feedline.samplers.block import BlockSampler
    from feedline.samplers.buckets import LengthBucketBatchSampler, TokenBudgetBatchSampler
    from feedline.samplers.costs import attention_cost
    from feedline.samplers.distributed import DistributedSampler, distribute
    from feedline.samplers.plain import InfiniteSampler, RandomSampler, SubsetRandomSampler
    from feedline.samplers.sequential import SequentialSampler
    from feedline.samplers.stratified import StratifiedBatchSampler
    from feedline.samplers.weighted import BalancedSampler, WeightedRandomSampler

__all__ = [
    "BalancedBatches",
    "BalancedSampler",
    "BatchSampler",
    "BlockSampler",
    "DistributedSampler",
    "InfiniteSampler",
    "LengthBucketBatchSampler",
    "RandomSampler",
    "SequentialSampler",
    "StratifiedBatchSampler",
    "SubsetRandomSampler",
    "TokenBudgetBatchSampler",
    "WeightedRandomSampler",
    "attention_cost",
    "distribute",
]

_FILES = {
    "BalancedBatches": "balanced",
    "BalancedSampler": "weighted",
    "BatchSampler": "batch",
    "BlockSampler": "block",
    "DistributedSampler": "distributed",
    "InfiniteSampler": "plain",
    "LengthBucketBatchSampler": "buckets",
    "RandomSampler": "plain",
    "SequentialSampler": "sequential",
    "StratifiedBatchSampler": "stratified",
    "SubsetRandomSampler": "plain",
    "TokenBudgetBatchSampler": "buckets",
    "WeightedRandomSampler": "weighted",
    "attention_cost": "costs",
    "distribute": "distributed",
}
"""The file of each sampler. A loader needs one or two, and a worker none, so each is imported when first used."""


# Any: a class or function of this folder.
def __getattr__(name: str) -> Any:
    if name not in _FILES:
        raise AttributeError(f"module 'feedline.samplers' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"feedline.samplers.{_FILES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
