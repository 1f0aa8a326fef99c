"""The context in which samples are read: the lap of a pipe, and the random numbers of samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.keys import mix
from feedline.types import State

Places: TypeAlias = NDArray[np.int64]
Samples: TypeAlias = list[Any]  # Any: samples are of any kind
CursorState: TypeAlias = State


_LAP = 40
"""Positions of random numbers: the number of the lap above the position in it. A stream has fewer than 2**40 samples.
"""


@dataclass(frozen=True)
class Lap:
    """Which of its orders a pipe uses: each epoch has its own, and so does each repetition in it."""

    epoch: int = 0
    number: int = 0
    worker: tuple[int, int] | None = None
    """Number of the worker and of workers, for datasets that split themselves; None if they are not passed on."""
    part: tuple[int, int] = (0, 1)
    """Number of the part that this worker of this rank reads, and of parts, if the pipe splits itself."""
    ranks: tuple[int, int] | None = None
    """The data rank and the number of data ranks, for the same datasets; None if they have to find out."""
    branch: int = 0
    """As in `Draws`."""
    is_followed: bool = False
    """True if other samples follow the stream: how many positions it has then matters."""

    def in_branch(self, number: int) -> Lap:
        """Return the lap of one of several streams."""
        return replace(self, branch=mix(self.branch, number))

    def draws(self, first: int, count: int) -> Draws:
        """Return the random numbers of samples that follow each other; each lap has its own."""
        first += self.number << _LAP
        return Draws(range(first, first + count), seeds=True, branch=self.branch)


@dataclass(frozen=True)
class Draws:
    """The random numbers of samples that are read together."""

    numbers: Sequence[int]
    """The position of each sample: it draws the numbers that belong to it."""
    seeds: bool = False
    """True to seed the process-wide generators for each sample; False if the loader does so for the batch."""
    branch: int = 0
    """The key of one of several datasets that are combined: they draw different numbers at the same position."""

    def of(self, chosen: Places) -> Draws:
        """Return those of some of the samples."""
        return replace(self, numbers=[self.numbers[number] for number in chosen.tolist()])

    def in_branch(self, number: int) -> Draws:
        """Return those of one of several datasets."""
        return replace(self, branch=mix(self.branch, number))
