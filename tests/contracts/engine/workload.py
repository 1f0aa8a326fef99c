"""What the suite's workers run: datasets and setup functions. Each can be imported by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tests.contracts.gate import Gate, Journal


class SampleFailed(Exception):
    """Raised by a sample on purpose."""


@dataclass
class Numbers:
    """Sample i is an array that contains i twice."""

    gate: Gate | None = None
    held: tuple[int, ...] = ()
    """Samples that pass through the gate first."""
    journal: Journal | None = None
    failing: Mapping[int, BaseException] | None = None
    """Samples that raise, with their exceptions."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        if self.journal is not None:
            self.journal.write(index)
        if self.gate is not None and index in self.held:
            self.gate.pass_through()
        if self.failing and index in self.failing:
            raise self.failing[index]
        return np.full(2, index)


@dataclass
class Countdown:
    """A stream of `count`, ..., 2, 1."""

    count: int

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.count, 0, -1))


@dataclass
class BrokenStream:
    """Raises after two samples."""

    def __iter__(self) -> Iterator[int]:
        yield 1
        yield 2
        raise SampleFailed("no third sample")


@dataclass
class WriteNumber:
    """A `worker_init` that records the number of each started worker."""

    journal: Journal

    def __call__(self, number: int) -> None:
        self.journal.write(number)


def refuse_to_start(number: int) -> None:
    """Fail as a `worker_init`."""
    raise SampleFailed(f"worker {number} has no licence")


def refuse_as_first(number: int) -> None:
    """Fail as the `worker_init` of worker 0."""
    if number == 0:
        refuse_to_start(number)


@dataclass
class RefuseOnce:
    """A `worker_init` that records the number of each started worker, and fails the first time for worker 0."""

    journal: Journal

    def __call__(self, number: int) -> None:
        self.journal.write(number)
        if self.journal.read().count("0") == 1:
            refuse_as_first(number)
