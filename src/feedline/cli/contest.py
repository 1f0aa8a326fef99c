"""Measure feedline and torch's loader in turns on one case.

Both get the same dataset object, the same arguments and the same seed; before anything is timed their first batches
are compared. In each round a loader is built, its first batches are dropped as warm-up, and batches are counted for a
fixed time. Start-up (construction to first batch) is a figure of its own. The consumer reads one element per page of
every batch, so that memory which is only mapped does not look free.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.utils.data

import feedline
from feedline.errors import InternalError

WARM_BATCHES = 8  # more than two workers have in flight, so that none of the timed batches was made before
PAGE_FLOATS = 1024

# A batch of any of the cases: a list of tensors; the loaders' own types are not relied on.
Batch = Any
LOADERS: dict[str, Callable[..., Iterable[Batch]]] = {
    "torch": torch.utils.data.DataLoader,
    "feedline": feedline.DataLoader,
}


@dataclass(frozen=True)
class Case:
    """One workload that both loaders are given."""

    name: str
    dataset: Any
    """Map-style; anything with `__len__` and `__getitem__`."""
    batch_size: int
    worker_count: int
    unit: str
    unit_per_batch: float
    """How many of `unit` one batch is worth."""

    @property
    def label(self) -> str:
        """The name with the number of workers."""
        return f"{self.name}, {f'{self.worker_count} workers' if self.worker_count else 'inline'}"


@dataclass(frozen=True)
class Round:
    """What one loader did once."""

    rate: float
    """In the case's unit, per second, after warm-up."""
    first_batch_ms: float
    """From construction to the first batch."""


@dataclass(frozen=True)
class Comparison:
    """Both loaders on one case; round i of one was measured next to round i of the other."""

    case: Case
    torch: tuple[Round, ...]
    feedline: tuple[Round, ...]
    other_load: float | None
    """Cores that other programs used meanwhile; None where the system does not tell."""

    @property
    def ratios(self) -> list[float]:
        """How many times faster feedline was, round by round."""
        return [ours.rate / theirs.rate for ours, theirs in zip(self.feedline, self.torch, strict=True)]

    @property
    def ratio(self) -> float:
        """The median of `ratios`."""
        return median(self.ratios)


def compare(case: Case, *, rounds: int, seconds: float, report: Callable[[], object]) -> Comparison:
    """Measure both loaders on `case` in turns, calling `report` after each of the `2 * rounds` measurements.

    Raises:
        InternalError: the loaders do not deliver equal batches, so their speeds cannot be compared.
    """
    check_equal_batches(case)
    results: dict[str, list[Round]] = {name: [] for name in LOADERS}
    load = LoadMeter()
    for number in range(rounds):
        for name, build in LOADERS.items():
            results[name].append(measure(case, build, seed=number, seconds=seconds))
            report()
    return Comparison(case, tuple(results["torch"]), tuple(results["feedline"]), load.read())


@contextmanager
def opened(case: Case, build: Callable[..., Iterable[Batch]], seed: int) -> Iterator[Iterator[Batch]]:
    """Yield the batches of a new loader, in an order that depends on the seed only, and end its workers afterwards."""
    loader = build(
        case.dataset,
        batch_size=case.batch_size,
        shuffle=True,
        num_workers=case.worker_count,
        generator=torch.Generator().manual_seed(seed),
    )
    try:
        yield iter(loader)
    finally:
        if isinstance(loader, feedline.DataLoader):
            loader.close()  # torch's workers end with their iterator


def check_equal_batches(case: Case) -> None:
    """Compare the first batches of both loaders; this also warms files and memory up for the first round."""
    theirs, ours = (first_batch(case, build) for build in LOADERS.values())
    if len(theirs) != len(ours) or not all(torch.equal(a, b) for a, b in zip(theirs, ours, strict=True)):
        raise InternalError(f"In the case {case.label!r} feedline's first batch differs from torch's.")


def first_batch(case: Case, build: Callable[..., Iterable[Batch]]) -> Batch:
    """Take one batch of a new loader."""
    with opened(case, build, seed=0) as batches:
        return next(batches)


def measure(case: Case, build: Callable[..., Iterable[Batch]], *, seed: int, seconds: float) -> Round:
    """Run one loader once, for `seconds` after warm-up or until its epoch ends."""
    begin = time.perf_counter()
    with opened(case, build, seed) as batches:
        _touch(next(batches))
        first_batch_ms = (time.perf_counter() - begin) * 1000
        for _ in range(WARM_BATCHES):
            _touch(next(batches))
        count = 0
        begin = now = time.perf_counter()
        for batch in batches:
            _touch(batch)
            count += 1
            now = time.perf_counter()
            if now - begin >= seconds:
                break
    if count == 0:
        raise InternalError(f"The case {case.label!r} has too few batches to time.")
    return Round(count * case.unit_per_batch / (now - begin), first_batch_ms)


def _touch(batch: Batch) -> None:
    batch[0].numpy().reshape(-1)[::PAGE_FLOATS].sum()


class LoadMeter:
    """How many cores other programs use, from `/proc/stat` less this process and its ended children."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self._others = self._other_seconds()

    def read(self) -> float | None:
        """Return the mean since construction, or None where there is no `/proc/stat`."""
        now = self._other_seconds()
        if now is None or self._others is None:
            return None
        return max(0.0, (now - self._others) / (time.perf_counter() - self._begin))

    @staticmethod
    def _other_seconds() -> float | None:
        stat = Path("/proc/stat")
        if not stat.exists():
            return None
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, stat.read_text().split()[1:11])
        machine = (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
        return machine - sum(os.times()[:4])
