"""torch's data pipes: seed and shard them by traversing their graph, one thread at a time.

torch sets hooks on the pipe classes during the traversal: another thread that traverses or copies one would run them.
Test: tests/frameworks/test_torch_pipes.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import graph_settings
from torch.utils.data.dataloader import _sharding_worker_init_fn

from feedline.system.process import lock_of_process

# Any, throughout: a pipe is whatever its user makes of it.


_turn = lock_of_process()
"""Whose turn it is to walk."""


def seed_pipe(pipe: Any, seed: int) -> Any:
    """Seed the shufflers of a pipe."""
    with _turn:
        return graph_settings.apply_random_seed(pipe, torch.Generator().manual_seed(seed))


def shard_pipe(pipe: Any, count: int, number: int) -> Any:
    """Let the filters of a pipe that share samples out leave one share of several."""
    with _turn:
        return graph_settings.apply_sharding(pipe, count, number)


def shard_in_worker(init: Callable[[int], None] | None, world_size: int, rank: int, worker: int) -> None:
    """Share out the pipe of this worker as torch does, and call the user's `worker_init_fn`."""
    with _turn:
        _sharding_worker_init_fn(None, world_size, rank, worker)
    if init is not None:
        init(worker)
