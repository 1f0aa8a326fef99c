"""Imbalanced data: a class with two percent of the samples, and three ways to draw batches from it.

    python examples/imbalanced.py

Shows: `shuffle=True` delivers the classes as they are, and many batches have no sample of the rare class.
`BalancedSampler` draws every class equally often, so rare samples come many times in an epoch.
`StratifiedBatchSampler(mode="each")` goes through the whole dataset and puts at least one sample of each class into
every batch. All of them are resumable and work with any number of workers.

Look at: the share of the "rare" class, the batches "without" it, and the "recall" of a model trained on each.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn

from feedline import DataLoader
from feedline.datasets import ArrayDataset
from feedline.samplers import BalancedSampler, StratifiedBatchSampler

BATCH = 32


def make_points(count: int, seed: int) -> dict[str, np.ndarray]:
    """Return points of two classes that overlap a little; the second has two percent of them."""
    rng = np.random.default_rng(seed)
    label = (np.arange(count) % 50 == 0).astype(np.int64)
    x = rng.normal(size=(count, 4)).astype(np.float32) + 1.2 * label[:, None].astype(np.float32)
    return {"x": x, "label": label}


def trained(loader: DataLoader[Any, Any], epochs: int) -> tuple[nn.Module, float, float]:
    """Train a model; return it, the share of the rare class, and the share of the batches without any of it."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    rare = []
    for _ in range(epochs):
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["x"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rare.append(batch["label"].float().mean().item())
    return model, float(np.mean(rare)), float(np.mean(np.array(rare) == 0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    points, test = make_points(6000, seed=1), make_points(6000, seed=2)
    dataset = ArrayDataset(points)
    loaders = {
        "shuffled": DataLoader(dataset, BATCH, shuffle=True, seed=0),
        "balanced": DataLoader(dataset, BATCH, sampler=BalancedSampler(points["label"], seed=0)),
        "one of each": DataLoader(
            dataset, batch_sampler=StratifiedBatchSampler(points["label"], BATCH, mode="each", seed=0)
        ),
    }
    shares, without, recalls = {}, {}, {}
    print("             rare class  without it  recall  false alarms")
    for name, loader in loaders.items():
        model, shares[name], without[name] = trained(loader, options.epochs)
        with torch.no_grad():
            is_alarm = model(torch.from_numpy(test["x"])).argmax(1).numpy() == 1
        is_rare = test["label"] == 1
        recalls[name] = is_alarm[is_rare].mean()
        alarms = is_alarm[~is_rare].mean()
        print(f"{name:>11} {shares[name]:11.1%} {without[name]:11.0%} {recalls[name]:7.0%} {alarms:13.1%}")
    assert shares["shuffled"] < 0.03
    assert 0.45 < shares["balanced"] < 0.55
    assert without["shuffled"] > 0.3
    assert without["one of each"] == 0
    assert recalls["balanced"] > recalls["shuffled"]


if __name__ == "__main__":
    main()
