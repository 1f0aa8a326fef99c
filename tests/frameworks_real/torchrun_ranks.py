"""One rank started by torchrun, in a torch process group: writes the samples of each loader."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.utils.data import IterableDataset, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from feedline import DataLoader, samplers
from tests.frameworks_real.deliveries import count_deliveries, delivered

SIZE = 24


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor(number) for number in range(SIZE))


def numbers(loader: Any) -> list[list[int]]:
    """Return the samples of two epochs."""
    found = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        batches = [batch[0] if isinstance(batch, list) else batch for batch in loader]
        found.append([int(number) for batch in batches for number in batch])
    return found


def main() -> None:
    count_deliveries()
    early: Any = DataLoader(Stream(), 2, shard=True)  # created before there is a group
    torch.distributed.init_process_group("gloo")
    data = TensorDataset(torch.arange(SIZE))
    options: dict[str, Any] = {"num_workers": 2, "engine": "thread"}
    answers: dict[str, Any] = {
        "sampler": numbers(DataLoader(data, 2, sampler=samplers.DistributedSampler(data, seed=3))),
        "torch's sampler": numbers(DataLoader(data, 2, sampler=DistributedSampler(data, seed=3))),
        "processes": numbers(DataLoader(data, 2, sampler=samplers.DistributedSampler(data), num_workers=1)),
        "early stream": numbers(early),
        "stream": numbers(DataLoader(Stream(), 2, shard=True, **options)),
    }
    answers["iterators"] = dict(delivered)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    Path(sys.argv[1], f"{os.getpid()}.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
