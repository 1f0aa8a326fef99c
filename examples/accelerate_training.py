"""Train with Accelerate on feedline's loader.

    python examples/accelerate_training.py
    accelerate launch --cpu --num_processes 2 examples/accelerate_training.py

Shows: `accelerator.prepare` takes feedline's loader like torch's and keeps feedline's options, such as `seed=` and
`on_error=`.

Look at: the samples of each epoch, which are 256 on one process and on two, and the loss.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator

from feedline import DataLoader


class Line(torch.utils.data.Dataset):
    """Points of a line."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / 256])
        return x, 3 * x + 1


def main() -> None:
    accelerator = Accelerator()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Line(), batch_size=16, shuffle=True, seed=0, num_workers=2, on_error="skip")
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(3):
        seen = 0
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            seen += len(accelerator.gather_for_metrics(x))
        accelerator.print(f"epoch {epoch}: {seen} samples, loss {loss.item():.3f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
