"""Train with the Trainer of transformers on feedline's loader.

    python examples/trainer_training.py
    torchrun --nproc-per-node 2 examples/trainer_training.py

Shows: a Trainer whose `get_train_dataloader` returns feedline's loader, with feedline's own options.

Look at: the samples of each rank: 512 in two epochs on one rank, 256 each on two.
"""

from __future__ import annotations

import tempfile

import torch
from transformers import Trainer, TrainingArguments

import feedline


class Line(torch.utils.data.Dataset):
    """Points of a line."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        x = torch.tensor([index / 256])
        return {"x": x, "labels": 3 * x + 1}


class Model(torch.nn.Module):
    """A line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen = 0

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss, as the Trainer wants it."""
        self.seen += len(x)
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), labels)}


class FeedlineTrainer(Trainer):
    """A Trainer whose training batches come from feedline, with feedline's own options."""

    def get_train_dataloader(self) -> torch.utils.data.DataLoader:
        """Return the loader of the training data."""
        loader = feedline.DataLoader(
            self.train_dataset,
            batch_size=self._train_batch_size,
            collate_fn=self.data_collator,
            shuffle=True,
            seed=self.args.seed,
            num_workers=self.args.dataloader_num_workers,
            drop_last=self.args.dataloader_drop_last,
            on_error="skip",
        )
        return self.accelerator.prepare(loader)


def main() -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            use_cpu=True,
            ddp_backend="gloo",
            num_train_epochs=2,
            per_device_train_batch_size=16,
            dataloader_num_workers=2,
            save_strategy="no",
            report_to=[],
        )
        FeedlineTrainer(model=model, args=arguments, train_dataset=Line()).train()
    print(f"rank {arguments.process_index}: {model.seen} samples")


if __name__ == "__main__":
    main()
