"""One rank of the tests of the Trainer of transformers: trains on numbers, and reports which it saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

import feedline
from tests.frameworks_real.deliveries import count_deliveries, delivered

SIZE = 24
BATCH = 4


class Numbers(Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(index)])}


class Model(torch.nn.Module):
    """Records its training samples."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []
        self.evaluated: list[int] = []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        numbers = [int(value) for value in x.flatten()]
        if self.training:
            self.seen.append(numbers)
        else:
            self.evaluated += numbers
        return {"loss": self.layer(x).mean() * 0.0, "logits": x}


class WithFeedline(Trainer):  # type: ignore[misc]  # transformers is not analysed
    """The override from the documentation of the Trainer."""

    def get_train_dataloader(self) -> TorchLoader[Any]:
        loader: TorchLoader[Any] = self.accelerator.prepare(
            feedline.DataLoader(
                self.train_dataset,
                batch_size=self._train_batch_size,
                collate_fn=self.data_collator,
                shuffle=True,
                seed=self.args.seed,
                num_workers=2,
                engine="thread",
                on_error="skip",
            )
        )
        return loader


def trained(kind: type[Any], name: str, **options: Any) -> dict[str, Any]:
    delivered.clear()
    model = Model()
    trainer = kind(
        model=model,
        args=TrainingArguments(
            output_dir=str(Path.cwd() / name),
            use_cpu=True,
            ddp_backend="gloo",
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            per_device_train_batch_size=BATCH,
            per_device_eval_batch_size=BATCH,
            num_train_epochs=2,
            **options,
        ),
        train_dataset=Numbers(),
        eval_dataset=Numbers(),
    )
    trainer.train()
    answer = {"seen": model.seen, "iterators": dict(delivered)}
    delivered.clear()
    trainer.evaluate()
    loader = trainer.get_train_dataloader().base_dataloader
    options_kept = {name: getattr(loader, name, None) for name in ("on_error", "engine", "seed")}
    return {**answer, "evaluated": model.evaluated, "eval_iterators": dict(delivered), "options": options_kept}


def main() -> None:
    count_deliveries()
    answers = {"override": trained(WithFeedline, "override")}
    with feedline.install():
        answers["installed"] = trained(Trainer, "installed")
        answers["installed, workers"] = trained(
            Trainer, "workers", dataloader_num_workers=2, dataloader_persistent_workers=True
        )
    answers["uninstalled"] = trained(Trainer, "uninstalled")
    print(json.dumps(answers))  # noqa: T201


if __name__ == "__main__":
    main()
