"""Loaders in Ray's tasks and actors, and in workers of Ray Train; reports their samples and iterators."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import ray.train.torch
import torch
from ray.train import RunConfig, ScalingConfig
from torch.utils.data import Dataset, IterableDataset, WeightedRandomSampler

from feedline import DataLoader, samplers
from feedline.types import EngineName
from tests.frameworks_real import deliveries

SIZE = 24
BATCH = 4


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return (torch.tensor(index) for index in range(SIZE))


def in_ray(engine: EngineName) -> dict[str, Any]:
    """Iterate over a loader on one engine."""
    workers = 0 if engine == "inline" else 2
    loader = DataLoader(Numbers(), BATCH, num_workers=workers, engine=engine, persistent_workers=workers > 0)
    seen = [sorted(index for batch in loader for index in batch.tolist()) for _ in range(2)]
    answer = {"epochs": seen, "iterator": type(iter(loader)).__name__}
    loader.close()
    return answer


class Reader:
    """An actor that keeps its own loader between calls."""

    def __init__(self, engine: EngineName) -> None:
        self.loader = DataLoader(Numbers(), BATCH, num_workers=0 if engine == "inline" else 2, engine=engine)
        self.batches = iter(self.loader)

    def read(self) -> list[int] | None:
        batch = next(self.batches, None)
        return None if batch is None else batch.tolist()


def loaders() -> dict[str, Any]:
    numbers: Any = Numbers()
    own = samplers.WeightedRandomSampler([1.0] * SIZE, SIZE, replacement=False, seed=3)
    return {
        "sequential": DataLoader(numbers, BATCH),
        "shuffled": DataLoader(numbers, BATCH, shuffle=True),
        "seeded": DataLoader(numbers, BATCH, shuffle=True, seed=1, on_error="skip"),
        "threads": DataLoader(numbers, BATCH, shuffle=True, num_workers=2, engine="thread"),
        "processes": DataLoader(numbers, BATCH, num_workers=2, persistent_workers=True),
        "own sampler": DataLoader(numbers, BATCH, sampler=own),
        "torch's sampler": DataLoader(
            numbers, BATCH, sampler=WeightedRandomSampler([1.0] * SIZE, SIZE, replacement=False)
        ),
        "batch sampler": DataLoader(numbers, batch_sampler=samplers.BatchSampler(range(SIZE), BATCH, False)),
        "distributed": DataLoader(numbers, BATCH, sampler=samplers.DistributedSampler(numbers)),
        "sharded": DataLoader(Stream(), BATCH, shard=True, num_workers=2),
    }


def train(config: dict[str, Any]) -> None:
    """Run in each worker of Ray Train."""
    deliveries.count_deliveries()
    rank = ray.train.get_context().get_world_rank()
    answers = {}
    for name, loader in loaders().items():
        prepared = ray.train.torch.prepare_data_loader(loader)
        deliveries.delivered.clear()
        epochs = []
        for epoch in range(2):
            if ray.train.get_context().get_world_size() > 1 and hasattr(prepared.sampler, "set_epoch"):
                prepared.sampler.set_epoch(epoch)
            epochs.append([batch.tolist() for batch in prepared])
        bare = ray.train.torch.prepare_data_loader(loader, move_to_device=False)
        answers[name] = {
            "epochs": epochs,
            "iterators": dict(deliveries.delivered),
            "loader": f"{type(bare).__module__}.{type(bare).__name__}",
            "on_error": bare.on_error,
            "engine": bare.engine,
        }
    Path(config["folder"], f"{rank}.json").write_text(json.dumps(answers))


def main() -> None:
    warnings.simplefilter("ignore")
    folder = Path.cwd()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=True)
    try:
        engines = ("inline", "thread", "process")
        remote: Any = ray.remote(num_cpus=0.1)
        task, actor = remote(in_ray), remote(Reader)
        answers: dict[str, Any] = {"tasks": dict(zip(engines, ray.get([task.remote(e) for e in engines]), strict=True))}
        readers = {engine: actor.remote(engine) for engine in engines}
        answers["actors"] = {
            engine: [ray.get(reader.read.remote()) for _ in range(SIZE // BATCH + 1)]
            for engine, reader in readers.items()
        }
        for reader in readers.values():
            ray.kill(reader)
        for count in map(int, sys.argv[1:]):
            place = folder / str(count)
            place.mkdir()
            trainer = ray.train.torch.TorchTrainer(
                train,
                train_loop_config={"folder": str(place)},
                scaling_config=ScalingConfig(num_workers=count, resources_per_worker={"CPU": 0.3}),
                run_config=RunConfig(storage_path=str(folder / "storage"), name=str(count)),
            )
            trainer.fit()
            answers[str(count)] = [json.loads((place / f"{rank}.json").read_text()) for rank in range(count)]
    finally:
        ray.shutdown()
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
