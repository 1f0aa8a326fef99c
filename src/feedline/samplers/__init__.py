"""Orders of indices that are entered anywhere and cost no memory. The names that torch has too take its arguments."""

from feedline.samplers.balanced import BalancedSampler
from feedline.samplers.batch import BatchSampler
from feedline.samplers.block import BlockSampler
from feedline.samplers.distribute import distribute
from feedline.samplers.distributed import DistributedSampler
from feedline.samplers.infinite import InfiniteSampler
from feedline.samplers.length_bucket import LengthBucketBatchSampler
from feedline.samplers.random import RandomSampler
from feedline.samplers.sequential import SequentialSampler
from feedline.samplers.stratified import StratifiedBatchSampler
from feedline.samplers.subset import SubsetRandomSampler
from feedline.samplers.token_budget import TokenBudgetBatchSampler
from feedline.samplers.torch_bases import add_torch_bases
from feedline.samplers.weighted import WeightedRandomSampler

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
