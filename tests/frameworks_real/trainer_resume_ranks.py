"""One rank of the tests of the Trainer's checkpoints: trains, and resumes from every step."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

import feedline
from tests.frameworks_real.deliveries import count_deliveries, delivered
from tests.frameworks_real.trainer_ranks import WithFeedline

BATCH = 2
STEPS = 2
EPOCHS = 3
RANKS = int(os.environ["WORLD_SIZE"])
SIZE = BATCH * STEPS * RANKS


class Numbers(Dataset[dict[str, torch.Tensor]]):
    """Samples that consist of their index and a random number."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(index), feedline.rng().random()])}


class Model(torch.nn.Module):
    """Records its training samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1)
        self.seen: list[Any] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.seen.append([[int(index), draw] for index, draw in x.tolist()])
        return {"loss": self.layer(x).mean() * 0.0}


class Epochs(TrainerCallback):  # type: ignore[misc]  # transformers is not analysed
    """Records where epochs start."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def on_epoch_begin(self, *_: Any, **__: Any) -> None:
        self.model.seen.append("epoch")


def trained(kind: type[Any], name: str, checkpoint: str | None = None) -> list[Any]:
    """Train; return all batches with their epochs."""
    model = Model()
    trainer = kind(
        model=model,
        args=TrainingArguments(
            output_dir=str(Path.cwd() / name),
            use_cpu=True,
            ddp_backend="gloo",
            report_to=[],
            save_strategy="no" if checkpoint else "steps",
            save_steps=1,
            save_only_model=True,  # optimizer states cannot be read on two CPU ranks
            logging_strategy="no",
            disable_tqdm=True,
            per_device_train_batch_size=BATCH,
            num_train_epochs=EPOCHS,
        ),
        train_dataset=Numbers(),
        callbacks=[Epochs(model)],
    )
    trainer.train(resume_from_checkpoint=checkpoint)
    epoch = EPOCHS - 1 - model.seen.count("epoch")
    seen = []
    for batch in model.seen:
        if batch == "epoch":
            epoch += 1
        else:
            seen.append([epoch, batch])
    return seen


def main() -> None:
    warnings.simplefilter("ignore")
    count_deliveries()
    answers: dict[str, Any] = {}

    def train_and_resume(kind: type[Any], name: str) -> None:
        whole = trained(kind, name)
        steps = range(1, STEPS * (EPOCHS - 1) + 1)
        rests = {step: [step, trained(kind, name, str(Path.cwd() / name / f"checkpoint-{step}"))] for step in steps}
        answers[name] = {"whole": whole, "rests": rests}

    train_and_resume(WithFeedline, "seeded")
    with feedline.install():
        train_and_resume(Trainer, "installed")
    print(json.dumps({"cases": answers, "iterators": dict(delivered)}))  # noqa: T201


if __name__ == "__main__":
    main()
