"""torch's data pipes: seeded and shared out by walking through their graph, by one thread at a time.

torch sets hooks on the classes of pipes while it walks: another thread that walks, or copies a pipe, would meet them.
Test: tests/frameworks/test_torch_pipes.py
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import graph_settings
from torch.utils.data.dataloader import _sharding_worker_init_fn

# Any, throughout: a pipe is whatever its user makes of it.


class _Turn:
    """Whose turn it is to walk. A forked process has nobody to wait for."""

    def __init__(self) -> None:
        self.renew()
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.RLock()


_turn = _Turn()


def seed_pipe(pipe: Any, seed: int) -> Any:
    """Seed the shufflers of a pipe."""
    with _turn.lock:
        return graph_settings.apply_random_seed(pipe, torch.Generator().manual_seed(seed))


def shard_pipe(pipe: Any, count: int, number: int) -> Any:
    """Let the filters of a pipe that share samples out leave one share of several."""
    with _turn.lock:
        return graph_settings.apply_sharding(pipe, count, number)


def shard_in_worker(init: Callable[[int], None] | None, world_size: int, rank: int, worker: int) -> None:
    """Share out the pipe of this worker as torch does, and call the user's `worker_init_fn`."""
    with _turn.lock:
        _sharding_worker_init_fn(None, world_size, rank, worker)
    if init is not None:
        init(worker)
