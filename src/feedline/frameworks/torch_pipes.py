"""torch's data pipes: seed and shard them by traversing their graph, one thread at a time.

During a traversal, torch sets hooks on the pipe classes: another thread that traverses or copies a pipe would run them.
Test: tests/frameworks/test_torch_pipes.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import graph_settings
from torch.utils.data.dataloader import _sharding_worker_init_fn

from feedline.system.process import lock_of_process

# Any, throughout: users define pipes of any kind.


_turn = lock_of_process()
"""Held during a traversal."""


def seed_pipe(pipe: Any, seed: int) -> Any:
    """Seed the shufflers of a pipe."""
    with _turn:
        return graph_settings.apply_random_seed(pipe, torch.Generator().manual_seed(seed))


def shard_pipe(pipe: Any, count: int, number: int) -> object:
    """Make the sharding filters of a pipe keep one share of several."""
    with _turn:
        return graph_settings.apply_sharding(pipe, count, number)


def shard_in_worker(init: Callable[[int], None] | None, world_size: int, rank: int, worker: int) -> None:
    """Shard this worker's pipe as torch does, and call the user's `worker_init_fn`."""
    with _turn:
        _sharding_worker_init_fn(None, world_size, rank, worker)
    if init is not None:
        init(worker)
