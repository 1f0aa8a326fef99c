"""Train with Ray Train on feedline's loader.

    python examples/ray_training.py

Shows: `ray.train.torch.prepare_data_loader` takes feedline's loader and keeps feedline's options.

Look at: the samples of each epoch, 128 on each of the two ranks.
"""

from __future__ import annotations

import tempfile

import ray
import ray.train
import ray.train.torch
import torch

from feedline import DataLoader


class Line(torch.utils.data.Dataset):
    """Points of a line."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / 256])
        return x, 3 * x + 1


def train() -> None:
    model = ray.train.torch.prepare_model(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Line(), batch_size=16, shuffle=True, seed=0, num_workers=2, on_error="skip")
    loader = ray.train.torch.prepare_data_loader(loader)
    for epoch in range(3):
        seen = 0
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(x)
        print(f"epoch {epoch}, rank {ray.train.get_context().get_world_rank()}: {seen} samples")


def main() -> None:
    ray.init(num_cpus=2, include_dashboard=False)
    with tempfile.TemporaryDirectory() as folder:
        trainer = ray.train.torch.TorchTrainer(
            train,
            scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
            run_config=ray.train.RunConfig(storage_path=folder),
        )
        trainer.fit()
    ray.shutdown()


if __name__ == "__main__":
    main()
