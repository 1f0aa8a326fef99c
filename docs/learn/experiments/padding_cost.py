"""How much of a batch is padding, and what does it cost: random batches, buckets, a token budget, packing?

20,000 lengths are drawn from a log-normal distribution (median 64, from 8 to 512), as sentences and sound files have
them. For each way to form batches the script counts the places that hold no token. Then a small encoder layer goes
through the batches of each way, and its processor time per real token is compared.

Read the table from top to bottom. `padding` is counted and exact; `tokens/s` is relative to random batches, and is of
this machine and this model.

    python docs/learn/experiments/padding_cost.py
"""

# ruff: noqa: D103, T201 (a script that prints)

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from feedline.samplers import BatchSampler, LengthBucketBatchSampler, RandomSampler, TokenBudgetBatchSampler

LIMIT = 512
Batches = list[NDArray[np.int64]]


def draw(count: int = 20_000, seed: int = 0) -> NDArray[np.int64]:
    """Return lengths whose logarithm is normally distributed."""
    drawn = np.random.default_rng(seed).lognormal(np.log(64), 0.8, count)
    return np.clip(drawn, 8, LIMIT).astype(np.int64)


def padded_share(lengths: NDArray[np.int64], batches: Iterable[NDArray[np.int64]]) -> float:
    """Return the share of places that hold no token when each batch is padded to its longest sample."""
    real = places = 0
    for batch in batches:
        real += int(lengths[batch].sum())
        places += len(batch) * int(lengths[batch].max())
    return 1 - real / places


def packed(lengths: Sequence[int], limit: int) -> list[list[int]]:
    """First fit, longest first: put each sequence into the first row that has room for it."""
    rows: list[list[int]] = []
    room = np.zeros(0, np.int64)
    for index in np.argsort(lengths)[::-1].tolist():
        fits = np.flatnonzero(room >= lengths[index])
        if len(fits):
            row = int(fits[0])
            rows[row].append(index)
            room[row] -= lengths[index]
        else:
            rows.append([index])
            room = np.append(room, limit - lengths[index])
    return rows


def ways(lengths: NDArray[np.int64], size: int) -> dict[str, Batches]:
    made = {
        "random": BatchSampler(RandomSampler(lengths, seed=0), size, drop_last=False),
        "buckets": LengthBucketBatchSampler(lengths, size, seed=0),
        "token budget": TokenBudgetBatchSampler(lengths, size * int(lengths.mean()), seed=0),
    }
    return {name: [np.asarray(batch) for batch in sampler] for name, sampler in made.items()}


def seconds(shapes: list[tuple[int, int]]) -> float:
    """Return the processor time of an encoder layer, forwards and backwards, on batches of these shapes."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
    start = time.process_time()
    for rows, length in shapes:
        layer(torch.ones(rows, length, 64)).sum().backward()
    return time.process_time() - start


def shapes_of(lengths: NDArray[np.int64], batches: Batches, budget: int) -> tuple[list[tuple[int, int]], int]:
    """Return the shapes of batches up to a number of tokens, spread over the epoch, and the real tokens in them."""
    chosen, real = [], 0
    for number in np.random.default_rng(1).permutation(len(batches)):
        batch = batches[number]
        chosen.append((len(batch), int(lengths[batch].max())))
        real += int(lengths[batch].sum())
        if real > budget:
            break
    return chosen, real


if __name__ == "__main__":
    torch.set_num_threads(1)
    lengths = draw()
    print(
        f"{len(lengths)} lengths: mean {lengths.mean():.0f}, median {np.median(lengths):.0f}, longest {lengths.max()}"
    )
    print(f"\npadded to {LIMIT} always: {1 - lengths.mean() / LIMIT:.1%} padding\n")
    print("batch size" + "".join(f"{name:>14}" for name in ("random", "buckets", "token budget")))
    for size in (8, 16, 32, 64, 128):
        print(f"{size:10}" + "".join(f"{padded_share(lengths, made):14.1%}" for made in ways(lengths, size).values()))
    rows = packed(lengths.tolist(), LIMIT)
    in_rows = 1 - lengths.sum() / (len(rows) * LIMIT)
    print(f"\npacked into rows of {LIMIT}: {len(rows)} rows, {in_rows:.2%} padding\n")

    forms = {
        f"padded to {LIMIT}": ([(32, LIMIT)] * 3, round(3 * 32 * lengths.mean())),
        **{name: shapes_of(lengths, made, 60_000) for name, made in ways(lengths, 32).items()},
        f"packed, rows of {LIMIT}": ([(5, LIMIT)] * 24, round(24 * 5 * LIMIT * (1 - in_rows))),
    }
    rates: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(3):
        for name, (shapes, real) in forms.items():
            rates[name].append(real / seconds(shapes))
    for name, found in rates.items():
        print(f"{name:22}{max(found):8.0f} tokens/s of CPU time, {max(found) / max(rates['random']):5.2f}x")
