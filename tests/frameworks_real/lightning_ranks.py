"""One rank of the tests of Lightning: trains with loaders of many kinds, and reports their samples and iterators."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import Dataset

from feedline import DataLoader, samplers
from tests.frameworks_real.deliveries import count_deliveries, delivered

SIZE = 51  # ranks have to repeat a sample
RANKS = int(os.environ["WORLD_SIZE"])  # Lightning removes it after a training
OPTIONS = ["seed", "on_error", "restarts", "memory_budget"]


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


class Broken(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise ValueError("sample 5 is broken")
        return super().__getitem__(index)


class Labelled(DataLoader[torch.Tensor]):
    """A typical subclass: it has its own attributes, and passes on the other arguments."""

    def __init__(self, dataset: Dataset[torch.Tensor], **options: Any) -> None:
        self.engine = "v8"
        super().__init__(dataset, restarts=3, **options)
        self.scheduler = "cosine"  # type: ignore[assignment]


class Model(LightningModule):  # type: ignore[misc]  # the type checker does not see Lightning
    """Counts samples instead of learning from them."""

    def __init__(self, make: Callable[[], Any] | None = None) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.make = make
        self.epochs: list[list[int]] = []

    def train_dataloader(self) -> Any:
        assert self.make is not None
        return self.make()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def on_train_epoch_start(self) -> None:
        self.epochs.append([])

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        self.epochs[-1] += batch.tolist()
        loss: torch.Tensor = self.layer(batch[:, None].float()).sum()
        return loss


def seeded(**options: Any) -> DataLoader[torch.Tensor]:
    return DataLoader(Numbers(), 4, shuffle=True, seed=1, **options)


def sampled(make: Callable[[Numbers], Any], **options: Any) -> DataLoader[torch.Tensor]:
    dataset = Numbers()
    return DataLoader(dataset, 4, sampler=make(dataset), **options)


def batched(make: Callable[[Numbers], Any]) -> DataLoader[torch.Tensor]:
    dataset = Numbers()
    return DataLoader(dataset, batch_sampler=make(dataset))


LOADERS: dict[str, Callable[[], Any]] = {
    "seeded": seeded,
    "seeded, workers": lambda: seeded(num_workers=1),
    "random": lambda: sampled(lambda data: samplers.RandomSampler(data)),
    "subset": lambda: sampled(lambda data: samplers.SubsetRandomSampler(range(SIZE)), seed=1),
    "distributed": lambda: sampled(lambda data: samplers.DistributedSampler(data)),
    "distribute": lambda: sampled(lambda data: samplers.distribute(samplers.SubsetRandomSampler(range(SIZE)))),
    "batches": lambda: batched(lambda data: samplers.BatchSampler(samplers.RandomSampler(data), 4, False)),
    "distributed batches": lambda: batched(
        lambda data: samplers.distribute(samplers.LengthBucketBatchSampler(range(1, 49), 4))
    ),
    "options": lambda: DataLoader(Broken(), 4, shuffle=True, seed=7, on_error="skip", restarts=3, memory_budget="1GB"),
    "subclass": lambda: Labelled(Broken(), batch_size=4, shuffle=True, seed=7, on_error="skip", memory_budget="1GB"),
}

EASY = ["seeded, workers", "random", "distribute"]  # treated like others in hooks and by Fabric


def trainer() -> Trainer:
    return Trainer(
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def report_of(model: Model, loader: Any) -> dict[str, Any]:
    """Return a report of a training."""
    iterators = dict(delivered)
    delivered.clear()
    return {
        "epochs": model.epochs,
        "iterators": iterators,
        "loader": type(loader).__name__,
        "options": {name: getattr(loader, name, None) for name in OPTIONS},
    }


def fit(make: Callable[[], Any], *, in_hook: bool) -> dict[str, Any]:
    """Train with a loader that is given to the trainer, or created in the module's hook."""
    model, by = Model(make), trainer()
    by.fit(model, *([] if in_hook else [make()]))
    return report_of(model, by.train_dataloader)


def fabric(make: Callable[[], Any]) -> dict[str, Any]:
    """Iterate over a loader that Fabric has set up."""
    by = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp")
    by.launch()
    loader: Any = by.setup_dataloaders(make())
    model = Model()
    for _ in range(2):
        model.epochs.append([index for batch in loader for index in batch.tolist()])
    return report_of(model, loader._dataloader)


def error_of(make: Callable[[], Any]) -> str:
    """Return the error of a training that must fail."""
    try:
        trainer().fit(Model(make))
    except ValueError as exc:
        return str(exc)
    raise AssertionError("no error was raised")


def main() -> None:
    """Train with all loaders."""
    warnings.simplefilter("ignore")
    count_deliveries()
    by = Fabric(accelerator="cpu", devices=RANKS, strategy="ddp")
    by.launch()  # ranks exist before the first sampler is created, as in hooks
    answers: dict[str, Any] = {}
    for name, make in LOADERS.items():
        answers[name] = fit(make, in_hook=False)
        if name not in EASY:
            answers[f"{name}, hook"] = fit(make, in_hook=True)
            answers[f"{name}, Fabric"] = fabric(make)
    lengths = range(1, SIZE + 1)
    answers["refused"] = error_of(
        lambda: DataLoader(Numbers(), batch_sampler=samplers.LengthBucketBatchSampler(lengths, 4, seed=1))
    )
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
