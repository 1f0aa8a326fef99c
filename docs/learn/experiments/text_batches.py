"""Text of varying length, step by step: how much is padding, and how many tokens a second does training get?

The case study docs/learn/case-text.md explains the steps. 6,000 texts are made: words of two topics, lengths
log-normally distributed. A small encoder learns to tell the topics apart. Each step forms batches in another way and
trains on about as many tokens. Times are processor times of the training process.

    python docs/learn/experiments/text_batches.py             # padding and tokens per second, about 20 s
    python docs/learn/experiments/text_batches.py --accuracy  # what a whole epoch learns, about a minute
"""

# ruff: noqa: D101, D103, T201 (a script that prints)

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feedline import DataLoader, collate, samplers

WORDS, LIMIT, TEXTS, TOKENS = 2_000, 256, 6_000, 30_000


def make_texts(count: int = TEXTS, seed: int = 0) -> list[dict[str, Any]]:
    """Return texts of two topics; a text's topic shows in a tenth of its words."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(np.log(40), 0.8, count), 5, LIMIT).astype(int)
    texts = []
    for length in lengths.tolist():
        topic = int(rng.integers(2))
        words = rng.integers(100, WORDS, length)
        special = rng.random(length) < 0.1
        words[special] = rng.integers(2 + 49 * topic, 51 + 49 * topic, special.sum())
        texts.append({"ids": words.astype(np.int64), "topic": topic})
    return texts


class Encoder(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width, padding_idx=0)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.out = nn.Linear(width, 2)

    def forward(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        padding = None if mask is None else ~mask
        vectors = self.layer(self.words(ids), src_key_padding_mask=padding)
        if mask is None:
            return self.out(vectors.mean(1))
        return self.out((vectors * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def mask_of(lengths: Tensor, longest: int) -> Tensor:
    return torch.arange(longest)[None, :] < lengths[:, None]


def to_limit(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Pad every batch to the same length, as people do who want one shape."""
    batch = collate.pad({"ids": 0}).bound_to("torch")(samples)
    missing = LIMIT - batch["ids"].shape[1]
    return {**batch, "ids": nn.functional.pad(batch["ids"], (0, missing))}


def train(loader: Any, tokens: int, *, use_mask: bool = True) -> dict[str, float]:
    """Train on about `tokens` tokens and return the padded share, the steps, and tokens per second of CPU time."""
    torch.manual_seed(0)
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    real = places = steps = 0
    start = time.process_time()
    for batch in loader:
        ids, lengths = batch["ids"], batch["ids_lengths"]
        mask = mask_of(lengths, ids.shape[1]) if use_mask else None
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids, mask), batch["topic"]).backward()
        optimizer.step()
        real, places, steps = real + int(lengths.sum()), places + ids.numel(), steps + 1
        if real >= tokens:
            break
    return {"padding": 1 - real / places, "steps": steps, "tokens_per_s": real / (time.process_time() - start)}


def steps_of(texts: list[dict[str, Any]]) -> dict[str, Any]:
    lengths = [len(text["ids"]) for text in texts]
    pad = collate.pad({"ids": 0})
    return {
        "padded to 256": DataLoader(texts, 32, shuffle=True, seed=0, collate_fn=to_limit),
        "to the longest of the batch": DataLoader(texts, 32, shuffle=True, seed=0, collate_fn=pad),
        "buckets": DataLoader(
            texts, batch_sampler=samplers.LengthBucketBatchSampler(lengths, 32, seed=0), collate_fn=pad
        ),
        "token budget": DataLoader(
            texts, batch_sampler=samplers.TokenBudgetBatchSampler(lengths, 32 * 54, seed=0), collate_fn=pad
        ),
    }


def accuracy(model: Encoder, texts: list[dict[str, Any]], *, use_mask: bool, least: int) -> float:
    """Return the share of texts whose topic is found, with batches of 50 padded to `least` places or more."""
    right = 0
    with torch.no_grad():
        for first in range(0, len(texts), 50):
            batch = collate.pad({"ids": 0}).bound_to("torch")(texts[first : first + 50])
            ids = nn.functional.pad(batch["ids"], (0, max(0, least - batch["ids"].shape[1])))
            mask = mask_of(batch["ids_lengths"], ids.shape[1]) if use_mask else None
            right += int((model(ids, mask).argmax(1) == batch["topic"]).sum())
    return right / len(texts)


def learned(loader: Any, *, use_mask: bool) -> tuple[float, float, float]:
    """Train for an epoch; return the processor time, and the accuracy with little and with much padding."""
    torch.manual_seed(0)
    model, others = Encoder(), make_texts(1000, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    start = time.process_time()
    for batch in loader:
        mask = mask_of(batch["ids_lengths"], batch["ids"].shape[1]) if use_mask else None
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch["ids"], mask), batch["topic"]).backward()
        optimizer.step()
    seconds = time.process_time() - start
    little, much = (accuracy(model, others, use_mask=use_mask, least=least) for least in (0, LIMIT))
    return seconds, little, much


if __name__ == "__main__":
    torch.set_num_threads(1)
    texts = make_texts()
    if "--accuracy" in sys.argv:
        loaders = steps_of(texts)
        for name in ("to the longest of the batch", "buckets", "token budget"):
            for use_mask in (True, False) if name == "token budget" else (True,):
                seconds, little, much = learned(loaders[name], use_mask=use_mask)
                print(f"{name:30}mask: {use_mask!s:6}{seconds:6.1f} s{little:8.1%}{much:8.1%}")
        sys.exit()
    lengths = np.array([len(text["ids"]) for text in texts])
    print(f"{len(texts)} texts, {lengths.sum()} tokens; mean {lengths.mean():.0f}, median {np.median(lengths):.0f}\n")
    print(f"{'':30}{'padding':>8}{'steps':>7}{'tokens/s':>10}")
    base = 0.0
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(3):
        for name, loader in steps_of(texts).items():
            found.setdefault(name, []).append(train(loader, TOKENS))
    for name, rows in found.items():
        best = max(rows, key=lambda row: row["tokens_per_s"])
        base = base or best["tokens_per_s"]
        print(
            f"{name:30}{best['padding']:8.1%}{best['steps']:7}{best['tokens_per_s']:10.0f}"
            f"{best['tokens_per_s'] / base:7.1f}x"
        )
