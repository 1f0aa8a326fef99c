"""Train with Lightning on feedline's loader, save a checkpoint in the middle of an epoch, and continue from there.

    python examples/lightning_training.py

Shows: Lightning saves the loader's state with the model. Training continues from a checkpoint of any step with the next
sample.

Look at: the last line. The samples before the checkpoint and those after it are all samples of the epoch, each once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from feedline import DataLoader


class Line(torch.utils.data.Dataset):
    """Points of a line."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / 256])
        return x, 3 * x + 1


class Model(lightning.LightningModule):
    """A line that is fitted; notes which samples it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[int] = []

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], number: int) -> torch.Tensor:
        """Return the loss of a batch."""
        x, y = batch
        self.seen += (x.flatten() * 256).round().int().tolist()
        return torch.nn.functional.mse_loss(self.layer(x), y)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(folder: Path, checkpoint: Path | None = None, steps: int = -1) -> list[int]:
    """Train for an epoch, or until something stops it; return the samples that were seen."""
    model = Model()
    loader = DataLoader(Line(), batch_size=16, shuffle=True, seed=0, num_workers=2)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        max_steps=steps,
        callbacks=[ModelCheckpoint(folder, "{step}", every_n_train_steps=6, save_top_k=-1)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader, ckpt_path=checkpoint)
    return model.seen


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = train(folder, steps=6)  # of the 16 batches of an epoch, as if the machine went down then
        rest = train(folder, folder / "step=6.ckpt")
    assert sorted(first + rest) == list(range(256))
    print(f"{len(first)} samples, then the other {len(rest)}: each one once")


if __name__ == "__main__":
    main()
