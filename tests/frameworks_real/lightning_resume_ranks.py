"""One rank of the tests of Lightning's checkpoints: trains with loaders of many kinds, and resumes from every step."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from feedline import DataLoader, samplers
from tests.frameworks_real.deliveries import count_deliveries, delivered
from tests.frameworks_real.drawing import BATCH, EPOCHS, RANKS, SIZE, Numbers, Stream


class Model(pl.LightningModule):  # type: ignore[misc]  # the type checker does not see Lightning
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[Any] = []

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        self.seen.append([self.current_epoch, batch.tolist()])
        loss: torch.Tensor = self.layer(batch).sum()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


class Save(Callback):  # type: ignore[misc]  # as above
    """Saves a checkpoint after every batch and every epoch, and records how many batches came before it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.steps: dict[str, int] = {}

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self._save(trainer, module, f"{trainer.current_epoch}-batch{len(module.seen)}")

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self._save(trainer, module, f"{trainer.current_epoch}-end")

    def _save(self, trainer: Any, module: Any, name: str) -> None:
        if trainer.current_epoch < EPOCHS - 1:
            self.steps[name] = len(module.seen)
            trainer.save_checkpoint(self.folder / name)


def own_sampler() -> Any:
    return samplers.DistributedSampler(range(SIZE), seed=5)


def torchs_sampler() -> Any:
    return torch.utils.data.DistributedSampler(Numbers(), num_replicas=RANKS, rank=int(os.environ["RANK"]))


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "in order": (lambda: DataLoader(Numbers(), BATCH), {}),
    "shuffled": (lambda: DataLoader(Numbers(), BATCH, shuffle=True), {}),
    "generator": (lambda: DataLoader(Numbers(), BATCH, shuffle=True, generator=torch.Generator()), {}),
    "seeded, in order": (lambda: DataLoader(Numbers(), BATCH, seed=1), {}),
    "seeded": (lambda: DataLoader(Numbers(), BATCH, shuffle=True, seed=1), {}),
    "seeded, workers": (
        lambda: DataLoader(Numbers(), BATCH, shuffle=True, seed=1, num_workers=1, persistent_workers=True),
        {},
    ),
    "own sampler": (lambda: DataLoader(Numbers(), BATCH, sampler=own_sampler(), seed=1), {}),
    "torch's sampler": (
        lambda: DataLoader(Numbers(), BATCH, sampler=torchs_sampler(), seed=1, num_workers=2, engine="thread"),
        {},
    ),
    "stream": (lambda: DataLoader(Stream(), BATCH, shard=True, num_workers=2, engine="thread"), {}),
    "limited": (lambda: DataLoader(Numbers(), BATCH, shuffle=True, seed=1), {"limit_train_batches": 1}),
}


def fit(name: str, checkpoint: Path | None = None, callbacks: tuple[Callback, ...] = ()) -> list[Any]:
    """Train, from the beginning or from a checkpoint; return the epoch and the samples of every batch."""
    make, options = CASES[name]
    torch.manual_seed(0)
    model = Model()
    trainer = pl.Trainer(
        **{"max_epochs": EPOCHS, **options},
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp" if RANKS > 1 else "auto",
        # Lightning's default is True: it then splits data that no sampler has split yet.
        use_distributed_sampler=name != "own sampler",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
    trainer.fit(model, make(), ckpt_path=checkpoint, weights_only=False)
    return model.seen


def main() -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    count_deliveries()
    answers = {}
    for name in sys.argv[1:] or CASES:
        folder = Path.cwd() / f"{name}-{os.environ['RANK']}"
        folder.mkdir()
        # Rank 0 writes the checkpoints, and all ranks read them.
        save = Save(Path.cwd() / f"{name}-0")
        whole = fit(name, callbacks=(save,))
        rests = {step: [done, fit(name, save.folder / step)] for step, done in save.steps.items()}
        answers[name] = {"whole": whole, "rests": rests}
    print(json.dumps({"cases": answers, "iterators": dict(delivered)}))  # noqa: T201


if __name__ == "__main__":
    main()
