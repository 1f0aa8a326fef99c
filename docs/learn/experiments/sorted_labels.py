"""What does the order of the samples do to stochastic gradient descent?

A small network learns ten classes from 4,000 samples that are stored class by class, as folders of images are. Four
runs differ in nothing but the order: as stored, shuffled once, shuffled anew in each epoch, and drawn with
replacement. All start from the same weights. The accuracy is that on 2,000 other samples, after each epoch; a column
is the mean of five runs with five different weights.

Read it from left to right: as stored, the network ends every epoch with what it was shown last. The other columns
differ less from each other than from the first.

    python docs/learn/experiments/sorted_labels.py
"""

# ruff: noqa: D103, T201 (a script that prints)

from __future__ import annotations

import torch
from torch import Tensor, nn

torch.set_num_threads(1)  # on two busy cores, threads that wait for each other would take most of the time
CLASSES, FEATURES, TRAIN, TEST, BATCH, EPOCHS, RUNS = 10, 20, 4000, 2000, 32, 8, 5
ORDERS = ("as stored", "shuffled once", "every epoch", "with replacement")


def samples(count: int, centres: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    labels = torch.arange(CLASSES).repeat_interleave(count // CLASSES)  # stored class by class
    return centres[labels] + 1.6 * torch.randn(count, FEATURES, generator=generator), labels


def order_of_epoch(kind: str, epoch: int) -> Tensor:
    generator = torch.Generator().manual_seed(0 if kind == "shuffled once" else epoch)
    if kind == "as stored":
        return torch.arange(TRAIN)
    if kind == "with replacement":
        return torch.randint(TRAIN, (TRAIN,), generator=generator)
    return torch.randperm(TRAIN, generator=generator)


def accuracies(kind: str, run: int) -> list[float]:
    """Return the accuracy on the other samples after each epoch, in percent."""
    generator = torch.Generator().manual_seed(run)
    centres = torch.randn(CLASSES, FEATURES, generator=generator)
    inputs, labels = samples(TRAIN, centres, generator)
    test_inputs, test_labels = samples(TEST, centres, generator)
    torch.manual_seed(run)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    after = []
    for epoch in range(EPOCHS):
        for batch in order_of_epoch(kind, epoch).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            after.append(100 * (model(test_inputs).argmax(1) == test_labels).float().mean().item())
    return after


def measured() -> dict[str, list[float]]:
    """Return the mean accuracies over the runs for each order, one per epoch."""
    return {kind: torch.tensor([accuracies(kind, run) for run in range(RUNS)]).mean(0).tolist() for kind in ORDERS}


if __name__ == "__main__":
    table = measured()
    print("epoch  " + "  ".join(f"{kind:>16}" for kind in ORDERS))
    for epoch in range(EPOCHS):
        print(f"{epoch + 1:5}  " + "  ".join(f"{table[kind][epoch]:16.1f}" for kind in ORDERS))
