"""A scheduler of your own: each worker keeps to the shards that it has opened.

    python examples/own_scheduler.py

Shows: a scheduler decides which worker makes which batch, and which finished batch comes next. The default assigns
batches in turn, so every worker opens every shard. `Affinity`, below, assigns a batch to the worker that has its shard
open, unless that worker is far behind. The training loop sees no difference: it gets the same batches in the same
order.

Look at: how many times shards were "opened" with each scheduler, and that the "batches are the same".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from feedline import DataLoader
from feedline.abc import Scheduler, WorkerView
from feedline.samplers import BlockSampler

SHARDS, PER_SHARD, BATCH, WORKERS = 12, 64, 16, 2


class Affinity(Scheduler):
    """Gives the batches of a shard to one worker, and a new shard to the worker with the fewest of them.

    A worker that has twice as many tasks as it may prefetch is far behind: the next batch of its shard then goes to
    the worker with the least to do, which opens the shard as well.
    """

    in_order = True  # `take` only ever returns the batch that is expected

    def open(self, worker_count: int, depth: int) -> None:
        super().open(worker_count, depth)
        self.owners: dict[int, int] = {}

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        shard = int(indices[0]) // PER_SHARD
        if shard not in self.owners:
            owned = np.bincount(list(self.owners.values()), minlength=len(workers))
            self.owners[shard] = int(owned.argmin())
        owner = workers[self.owners[shard]]
        if owner.outstanding < 2 * self.depth:
            return owner.id
        return min(workers, key=lambda worker: worker.outstanding).id

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return expected if expected in ready else None


class Shards(torch.utils.data.Dataset[Any]):
    """Samples in shards. A sample says whether its shard had to be opened for it; each worker has a copy of this."""

    def __init__(self) -> None:
        self.opened: dict[int, np.ndarray] = {}

    def __len__(self) -> int:
        return SHARDS * PER_SHARD

    def __getitem__(self, index: int) -> tuple[float, bool]:
        """Return a value, and whether a shard was opened."""
        shard, row = divmod(index, PER_SHARD)
        is_new = shard not in self.opened
        if is_new:  # stands for what is expensive: a download, a decompression, an index that is read
            self.opened[shard] = np.random.default_rng(shard).random(PER_SHARD)
        return float(self.opened[shard][row]), is_new


def epoch_with(scheduler: Scheduler | None) -> tuple[list[list[float]], int]:
    """Return the batches of an epoch, and how often a worker had to open a shard."""
    order = BlockSampler([PER_SHARD] * SHARDS, window=1, seed=0)  # shard by shard, shuffled within
    loader = DataLoader(Shards(), BATCH, sampler=order, num_workers=WORKERS, scheduler=scheduler)
    batches, opened = [], 0
    for values, is_new in loader:
        batches.append(values.tolist())
        opened += int(is_new.sum())
    return batches, opened


def main() -> None:
    plain, opened_in_turn = epoch_with(None)
    ours, opened_by_affinity = epoch_with(Affinity())
    print(f"in turn, the default: {WORKERS} workers opened {SHARDS} shards {opened_in_turn} times")
    print(f"affinity: they opened them {opened_by_affinity} times")
    print(f"the batches are the same, in the same order: {ours == plain}")
    assert ours == plain
    assert SHARDS <= opened_by_affinity < opened_in_turn


if __name__ == "__main__":
    main()
