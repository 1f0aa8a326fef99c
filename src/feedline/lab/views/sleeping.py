"""A dataset for views in which time passes: samples that sleep, and say who made them and when."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from feedline.lab.pictures import Shade

Span = tuple[int, float, float, Shade, str]


@dataclass(frozen=True)
class Made:
    """A batch as the training loop got it: who made it, and when; seconds on a clock that all processes share."""

    worker: int
    began: float
    ended: float
    asked: float
    got: float


class Sleeping(Dataset[torch.Tensor]):
    """Samples that take some time, as storage or a decoder does.

    Args:
        samples: how many.
        load_s: of a sample, on average.
        spread: how far samples differ: 0 for not at all.
        stragglers: the share of samples that take 20 times as long.
    """

    def __init__(self, samples: int, load_s: float, spread: float = 0.0, stragglers: float = 0.0) -> None:
        dice = np.random.default_rng(11)
        times = load_s * dice.lognormal(-(spread**2) / 2, spread, samples) if spread else np.full(samples, load_s)
        self.times = np.where(dice.random(samples) < stragglers, 20 * load_s, times)

    def __len__(self) -> int:
        return len(self.times)

    def __getitem__(self, index: int) -> torch.Tensor:
        info = get_worker_info()
        began = time.monotonic()
        time.sleep(float(self.times[index]))
        return torch.tensor([-1.0 if info is None else info.id, began, time.monotonic()], dtype=torch.float64)


def made_of(batch: torch.Tensor, asked: float, got: float) -> Made:
    """Read who made a batch, and when, out of the batch itself."""
    return Made(int(batch[0, 0]), float(batch[:, 1].min()), float(batch[:, 2].max()), asked, got)


def spans_of(made: list[Made], workers: int, origin: float) -> list[Span]:
    """Return lanes of the training loop, which comes first, and of the workers."""
    spans: list[Span] = []
    for number, batch in enumerate(made):
        if number:
            spans.append((0, made[number - 1].got - origin, batch.asked - origin, "compute", f"step {number - 1}"))
        if batch.got - batch.asked > 1e-4:
            spans.append((0, batch.asked - origin, batch.got - origin, "order", f"waited for batch {number}"))
        if workers:
            lane = 1 + batch.worker
            spans.append((lane, batch.began - origin, batch.ended - origin, "fetch", f"batch {number}"))
    return spans
