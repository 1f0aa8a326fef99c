"""Make batches in the actors of a Ray cluster.

    python examples/ray_workers.py

Without an address (RAY_ADDRESS, or `RayOptions(address=...)`), the script starts a local cluster, which ends with the
program.

Shows: `engine=RayOptions(...)` moves the workers of a loader to a cluster; nothing else changes.

Look at: the samples and the loss of each epoch, and the last line: with a seed, the batches are those of a loader
without workers, bit by bit.
"""

from __future__ import annotations

import torch

from feedline import DataLoader, RayOptions


class Line(torch.utils.data.Dataset):
    """Noisy points of a line."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.tensor([index / 256])
        return x, 3 * x + 1 + 0.01 * torch.randn(1)


def main() -> None:
    options = {"batch_size": 16, "shuffle": True, "seed": 0}
    loader = DataLoader(
        Line(), num_workers=2, persistent_workers=True, engine=RayOptions(num_cpus=0.5), on_error="skip", **options
    )
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        seen = 0
        for x, y in loader:
            loss = torch.nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(x)
        print(f"epoch {epoch}: {seen} samples, loss {loss.item():.4f}")
    here = [(x.clone(), y.clone()) for x, y in DataLoader(Line(), **options)]
    there = [(x.clone(), y.clone()) for x, y in DataLoader(Line(), num_workers=1, engine="ray", **options)]
    same = all(torch.equal(a, c) and torch.equal(b, d) for (a, b), (c, d) in zip(here, there, strict=True))
    print(f"the batches of a loader without workers, bit by bit: {same}")


if __name__ == "__main__":
    main()
