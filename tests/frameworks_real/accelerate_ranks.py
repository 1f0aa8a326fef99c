"""One rank of the tests of Accelerate: prepares loaders of many kinds, and reports their samples and iterators."""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration, skip_first_batches
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import Dataset, IterableDataset

from feedline import DataLoader, samplers
from feedline.datasets import TarDataset
from tests.frameworks_real.deliveries import count_deliveries, delivered

SIZE = 24
BATCH = 4
SHARDS = 6


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Broken(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise ValueError("sample 5 is broken")
        return super().__getitem__(index)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor(index) for index in range(SIZE))


class SizedStream(Stream):
    def __len__(self) -> int:
        return SIZE


def tar_shards(folder: Path) -> list[str]:
    """Write the samples into shards; every rank writes its own, so that none has to wait for another."""
    paths = []
    for shard in range(SHARDS):
        path = folder / f"{shard}.tar"
        with tarfile.open(path, "w") as archive:
            for index in range(shard * SIZE // SHARDS, (shard + 1) * SIZE // SHARDS):
                content = str(index).encode()
                header = tarfile.TarInfo(f"{index:03}.cls")
                header.size = len(content)
                archive.addfile(header, BytesIO(content))
        paths.append(str(path))
    return paths


class Labels(torch.nn.Module):
    """Collates samples of tar files."""

    def forward(self, samples: list[dict[str, Any]]) -> torch.Tensor:
        return torch.tensor([int(sample["cls"]) for sample in samples])


Case = tuple[DataLoaderConfiguration, Callable[[], Any]]


def cases(folder: Path) -> dict[str, Case]:
    plain = DataLoaderConfiguration
    tar: Any = TarDataset(tar_shards(folder)).stream()
    return {
        "sequential": (plain(), lambda: DataLoader(Numbers(), BATCH)),
        "shuffled": (plain(), lambda: DataLoader(Numbers(), BATCH, shuffle=True)),
        "seedable": (plain(use_seedable_sampler=True, data_seed=7), lambda: DataLoader(Numbers(), BATCH, shuffle=True)),
        "seeded": (plain(), lambda: DataLoader(Numbers(), BATCH, shuffle=True, seed=1)),
        "seeded and seedable": (
            plain(use_seedable_sampler=True),
            lambda: DataLoader(Numbers(), BATCH, shuffle=True, seed=1),
        ),
        "processes": (plain(), lambda: DataLoader(Numbers(), BATCH, num_workers=2, persistent_workers=True)),
        "threads": (plain(), lambda: DataLoader(Numbers(), BATCH, num_workers=2, engine="thread")),
        "broken": (plain(), lambda: DataLoader(Broken(), BATCH, on_error="skip")),
        "uneven": (plain(), lambda: DataLoader(Numbers(SIZE + 2), BATCH)),
        "uneven batches": (plain(even_batches=False), lambda: DataLoader(Numbers(SIZE + 2), BATCH)),
        "batch sampler": (
            plain(),
            lambda: DataLoader(Numbers(), batch_sampler=samplers.BatchSampler(range(SIZE), BATCH, False)),
        ),
        "distributed": (plain(), lambda: DataLoader(Numbers(), BATCH, sampler=samplers.DistributedSampler(Numbers()))),
        "torch's distributed": (
            plain(),
            lambda: DataLoader(Numbers(), BATCH, sampler=torch.utils.data.distributed.DistributedSampler(Numbers())),
        ),
        "distributed, batches split": (
            plain(split_batches=True),
            lambda: DataLoader(Numbers(), 6, sampler=samplers.DistributedSampler(Numbers())),
        ),
        "tar": (plain(), lambda: DataLoader(tar, BATCH, collate_fn=Labels())),
        "tar, workers": (plain(), lambda: DataLoader(tar, BATCH, collate_fn=Labels(), num_workers=2)),
        "sharded": (plain(), lambda: DataLoader(Stream(), BATCH, shard=True)),
        "sharded, workers": (plain(), lambda: DataLoader(SizedStream(), BATCH, shard=True, num_workers=2)),
        "sharded, batches split": (plain(split_batches=True), lambda: DataLoader(Stream(), 6, shard=True)),
        "stream": (plain(), lambda: DataLoader(Stream(), BATCH)),
        "stream, not dispatched": (plain(dispatch_batches=False), lambda: DataLoader(Stream(), BATCH)),
        "batches split": (plain(split_batches=True), lambda: DataLoader(Numbers(), 6)),
        "dispatched": (plain(dispatch_batches=True), lambda: DataLoader(Numbers(), BATCH)),
        "stateful": (plain(use_stateful_dataloader=True), lambda: DataLoader(Numbers(), BATCH, num_workers=2)),
    }


def report_of(loader: Any, epochs: int = 2) -> dict[str, Any]:
    """Iterate over a loader and report what it delivered."""
    delivered.clear()
    seen = [[batch.tolist() for batch in loader] for _ in range(epochs)]
    inner = vars(loader).get("base_dataloader", loader)
    return {
        "epochs": seen,
        "iterators": dict(delivered),
        "loader": f"{type(inner).__module__}.{type(inner).__name__}",
        "engine": getattr(inner, "engine", None),
        "faults": [fault.index for fault in getattr(inner, "faults", [])],
    }


def gathered(accelerator: Accelerator, loader: Any) -> list[int]:
    """Return the samples from which a metric would be computed."""
    found: list[int] = []
    for batch in loader:
        found += accelerator.gather_for_metrics(batch).tolist()
    return found


def main() -> None:
    count_deliveries()
    folder = Path.cwd() / f"shards{os.environ['RANK']}"
    folder.mkdir()
    answers: dict[str, Any] = {}
    for name, (config, make) in cases(folder).items():
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        prepared = accelerator.prepare(make())
        answers[name] = report_of(prepared)
        answers[name]["stateful"] = getattr(prepared, "use_stateful_dataloader", None)
    accelerator = Accelerator(cpu=True)
    prepared = accelerator.prepare(DataLoader(Numbers(), BATCH, on_error="skip"))
    answers["skipped"] = report_of(skip_first_batches(prepared, 1), 1)
    answers["skipped stream"] = report_of(
        accelerator.skip_first_batches(accelerator.prepare(DataLoader(Stream(), BATCH, shard=True)), 1), 1
    )
    answers["skipped bare"] = report_of(skip_first_batches(DataLoader(Numbers(), BATCH, on_error="skip"), 1), 1)
    answers["function"] = report_of(
        prepare_data_loader(DataLoader(Numbers(), BATCH, shuffle=True), rng_types=["generator"])
    )
    uneven = accelerator.prepare(DataLoader(Numbers(SIZE + 2), BATCH))
    answers["gathered"] = gathered(accelerator, uneven)
    exact = accelerator.prepare(DataLoader(SizedStream(), 5, shard="exact"))
    answers["gathered stream"] = gathered(accelerator, exact)
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
