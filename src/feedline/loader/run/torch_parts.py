"""What a `DataLoader` is made of. It is imported with the first loader, not with the class.

A spawned worker imports the program, which imports the class, but makes no loader.
Test: tests/workers/processes/test_fresh.py
"""

from feedline.device.torch_target import device_of
from feedline.frameworks.torch import TorchFramework
from feedline.frameworks.torch_samplers import SeedSource
from feedline.loader.rebuilding import adopt_samplers, keep_in_frameworks
from feedline.loader.run.torch_batches import TorchBatches
from feedline.loader.run.torch_config import TorchConfig
from feedline.order.sharding import steps_of
from feedline.samplers import RandomSampler

__all__ = [
    "RandomSampler",
    "SeedSource",
    "TorchBatches",
    "TorchConfig",
    "TorchFramework",
    "adopt_samplers",
    "device_of",
    "keep_in_frameworks",
    "steps_of",
]
