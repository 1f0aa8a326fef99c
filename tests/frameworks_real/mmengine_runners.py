"""An mmengine runner with loaders: reports the samples it saw, by epochs and by iterations, and their iterators."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from typing import Any

import torch

from tests.frameworks_real.bases import use_base, without
from tests.frameworks_real.deliveries import delivered

DataLoader = use_base(sys.argv[1])
without("torchvision")

from mmengine.dataset import DefaultSampler, InfiniteSampler  # noqa: E402
from mmengine.model import BaseModel  # noqa: E402
from mmengine.runner import Runner  # noqa: E402


class Model(BaseModel):  # type: ignore[misc]  # the package has no types
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.seen: list[Any] = []

    def forward(self, batch: Any, mode: str = "tensor") -> Any:
        self.seen.append(batch.tolist())
        return {"loss": self.linear(batch.float()[:, None]).sum()}


class Numbers(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"batch": index}


def ran(loader: Any, **options: Any) -> dict[str, Any]:
    delivered.clear()
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        Runner(
            model,
            folder,
            train_dataloader=loader,
            train_cfg=options,
            optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.0}},
            default_hooks={"checkpoint": None, "logger": None},
            randomness={"seed": 3},
            default_scope=None,
            log_level=logging.ERROR,
            experiment_name=f"run{len(delivered)}{id(model)}",
        ).train()
    return {"seen": model.seen, "iterators": dict(delivered)}


def main() -> None:
    numbers = Numbers()
    config = {
        "dataset": numbers,
        "batch_size": 4,
        "sampler": {"type": "DefaultSampler", "shuffle": True},
        "collate_fn": {"type": "default_collate"},
        "num_workers": 2,
        "persistent_workers": True,
    }
    answers = {
        "epochs": ran(DataLoader(numbers, 4, sampler=DefaultSampler(numbers, seed=3)), by_epoch=True, max_epochs=2),
        "iterations": ran(
            DataLoader(numbers, 4, sampler=InfiniteSampler(numbers, seed=3)), by_epoch=False, max_iters=5
        ),
        "config": ran(config, by_epoch=True, max_epochs=2),
    }
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
