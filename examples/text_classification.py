"""Text classification with buckets: batches of texts of similar length, so that little of a batch is padding.

    python examples/text_classification.py

Shows: `feedline.collate.pad` pads the texts of a batch to the longest of them. How much padding this adds depends on
which texts share a batch, which the sampler decides. `LengthBucketBatchSampler` puts texts of similar length together;
`TokenBudgetBatchSampler` also bounds the tokens of a batch, so that a batch of long texts has fewer texts. Both
shuffle: the texts of a batch and the order of the batches differ from epoch to epoch.

Look at: the "padding" of each sampler, the largest batch in tokens, and the "accuracy" after training with buckets.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import nn

from feedline import DataLoader, collate
from feedline.samplers import BatchSampler, LengthBucketBatchSampler, RandomSampler, TokenBudgetBatchSampler

WORDS = {"good": 1, "great": 2, "fine": 3, "bad": 4, "poor": 5, "dull": 6}
FILLERS, PADDING = 200, 0


def write_reviews(count: int) -> list[dict[str, Any]]:
    """Return reviews as token numbers: many filler words, and a few that praise or blame."""
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(3.5, 0.8, count).astype(int).clip(5, 400)
    reviews = []
    for length in lengths.tolist():
        label = int(rng.integers(2))
        ids = rng.integers(len(WORDS) + 1, len(WORDS) + FILLERS, length)
        places = rng.permutation(length)[: max(2, length // 8)]
        ids[places] = rng.integers(1, 4, len(places)) + (0 if label else 3)
        reviews.append({"ids": ids, "label": label})
    return reviews


class Classifier(nn.Module):
    """The mean of the embeddings of a text's words, without the padding, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS) + FILLERS, 16, padding_idx=PADDING)
        self.output = nn.Linear(16, 2)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the scores of both classes."""
        return self.output(self.embedding(ids).sum(1) / lengths.unsqueeze(1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    reviews = write_reviews(4000)
    lengths = [len(review["ids"]) for review in reviews]

    samplers = {
        "shuffled": BatchSampler(RandomSampler(reviews, seed=0), 32, drop_last=False),
        "buckets": LengthBucketBatchSampler(lengths, 32, seed=0),
        "token budget": TokenBudgetBatchSampler(lengths, 2048, seed=0),
    }
    padding: dict[str, float] = {}
    loaders: dict[str, DataLoader[Any, Any]] = {}
    for name, sampler in samplers.items():
        pad = collate.pad({"ids": PADDING})
        loader = DataLoader(reviews, batch_sampler=sampler, num_workers=2, collate_fn=pad)
        tokens = filled = largest = 0
        for batch in loader:
            tokens, filled = tokens + batch["ids"].numel(), filled + int(batch["ids_lengths"].sum())
            largest = max(largest, batch["ids"].numel())
        padding[name], loaders[name] = 1 - filled / tokens, loader
        print(f"{name:>12}: {padding[name]:4.0%} padding, {len(loader)} batches, the largest has {largest} tokens")
        assert filled == sum(lengths), "every text comes once"
        if name == "token budget":
            assert largest <= 2048

    model = Classifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        right = 0
        for batch in loaders["buckets"]:
            scores = model(batch["ids"], batch["ids_lengths"])
            loss = nn.functional.cross_entropy(scores, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((scores.argmax(1) == batch["label"]).sum())
        print(f"epoch {epoch}: accuracy {right / len(reviews):.0%}")
    assert right / len(reviews) > 0.9
    assert padding["buckets"] < padding["shuffled"] / 3


if __name__ == "__main__":
    main()
