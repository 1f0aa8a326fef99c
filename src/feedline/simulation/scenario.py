"""What to simulate: the data, the loader's options, and how long things take."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

IN_ORDER, UNORDERED = "in order", "unordered"


class LawBroken(AssertionError):
    """Something happened that must not, or nothing can happen any more: a bug in the core or in a scheduler.

    Example:
        >>> from feedline.simulation import LawBroken, Scenario
        >>> from feedline.simulation.engine import SimulatedEngine
        >>> engine = SimulatedEngine(Scenario(start_s=0.0))
        >>> try:
        ...     engine.collect(None)  # no worker has a task
        ... except LawBroken as broken:
        ...     print(broken)
        the loader waits, but nothing will ever happen
    """


@dataclass(frozen=True)
class InTurn:
    """Recorded times that are used in turn: the first batch of an epoch takes the first, and so on, over and over.

    Example:
        >>> from feedline.simulation import InTurn, Scenario
        >>> Scenario(workers=1, batch_s=InTurn((0.1, 0.3))).batch_s.seconds[1]
        0.3
    """

    seconds: tuple[float, ...]


Seconds = float | Sequence[float] | InTurn
"""The mean of times that are drawn; or recorded times, chosen at random or (`InTurn`) used in turn."""


def draw_s(dice: random.Random, seconds: Seconds, place: int = 0) -> float:
    """Draw a time; if recorded times are used in turn, return the one for `place`."""
    if isinstance(seconds, InTurn):
        return seconds.seconds[place % len(seconds.seconds)]
    if isinstance(seconds, (int, float)):
        return dice.expovariate(1.0 / seconds) if seconds else 0.0
    return dice.choice(seconds)


@dataclass(frozen=True)
class Scenario:
    """What to simulate. Everything else follows from the seed.

    Example:
        >>> from feedline.simulation import Scenario
        >>> Scenario(samples=100, workers=4, batch_s=0.1).depth
        2
    """

    seed: int = 0
    samples: int = 1000
    """Size of the dataset."""
    batch_size: int | None = 8
    """None for single samples."""
    workers: int = 2
    depth: int = 2
    order: str = IN_ORDER
    """"in order" or "unordered"."""
    moves: bool = True
    """False if batches may depend on their worker, so worker i makes batch i mod n: processes without `seed=`."""
    deepens: bool = False
    """True if more batches may be in flight while they are quick to make, as by default in a loader."""
    batch_s: Seconds = 0.1
    """How long a worker takes for a batch."""
    start_s: Seconds = 1.0
    """How long a worker takes to get ready."""
    late: float = 0.0
    """The probability that a batch takes 20 times as long."""
    cores: int | None = None
    """Cores that the workers share while they compute; None if each has its own."""
    computing: float = 1.0
    """The share of a batch's time that its worker computes; the rest it waits."""

    def contention(self, at_work: int) -> float:
        """Return how many times as long a batch takes if `at_work` workers, including its own, are then busy."""
        return 1.0 if self.cores is None else float(contention(at_work, self.cores, self.computing))


# Any: a number, or an array of them, as `at_work` is.
def contention(at_work: float | NDArray[np.int64], cores: int, computing: float) -> Any:
    """Return how many times as long a batch takes if `at_work` workers share the cores.

    The simplest model: cores are shared evenly, waiting needs no core, and no core idles while a worker could use it.

    Args:
        at_work: number of busy workers.
        cores: number of cores they share.
        computing: the share of a batch's time that its worker computes.

    Example:
        >>> [float(contention(workers, 4, 1.0)) for workers in (2, 4, 8)]
        [1.0, 1.0, 2.0]
        >>> float(contention(16, 4, 0.5))
        2.0
    """
    return np.maximum(1.0, at_work * computing / cores)
