"""Samplers that can start at any position and use no memory. Those named as in torch take torch's arguments."""

from feedline.samplers.batch import BatchSampler
from feedline.samplers.block import BlockSampler
from feedline.samplers.buckets import LengthBucketBatchSampler, TokenBudgetBatchSampler
from feedline.samplers.distributed import DistributedSampler, distribute
from feedline.samplers.plain import InfiniteSampler, RandomSampler, SequentialSampler, SubsetRandomSampler
from feedline.samplers.stratified import StratifiedBatchSampler
from feedline.samplers.torch_bases import add_torch_bases
from feedline.samplers.weighted import BalancedSampler, WeightedRandomSampler

add_torch_bases()

__all__ = [
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
    "distribute",
]


def __dir__() -> list[str]:
    return __all__
