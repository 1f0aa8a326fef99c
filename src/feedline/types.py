"""Values that travel between folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class DatasetKind(Enum):
    """How samples come out of a dataset."""

    MAP = "map"
    ITERABLE = "iterable"


@dataclass(slots=True)
class IndexBlock:
    """Indices that feedline's own plan made: one integer array. A user's array is never wrapped in this."""

    array: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: int) -> int:
        return int(self.array[place])


@dataclass(slots=True)
class Part:
    """Some rows of a batch whose layout is known: one worker fills them, others fill the rest of the slot."""

    places: list[tuple[int, int]]
    """Offset and size of the rows of each array, in the order in which they are made."""
    description: Any
    """What the framework will say of the rows if they came out as expected."""


@dataclass(slots=True)
class Task:
    """The work for one batch, or for the next batch of one worker's stream."""

    id: int
    """Unique for the life of an engine, so that an answer from an abandoned epoch is recognised."""
    indices: Any
    """What the plan asks for: an `IndexBlock`, a list, one index; for an iterable dataset the sample count."""
    slot: int = -1
    """Number of the slot the batch may be written to; -1 when there is none."""
    epoch: int = 0
    """A worker that sees a higher number than before begins its stream again."""
    shared_seed: int | None = None
    """Seed of the epoch that all workers and ranks share, for torch's data pipes."""
    part: Part | None = None


class ResultKind(Enum):
    """What became of a task."""

    DONE = 1
    FAILED = 2
    ENDED = 3
    DIED = 4
    MISFIT = 5


@dataclass(slots=True)
class Result:
    """What an engine reports about one task."""

    kind: ResultKind
    worker: int
    task_id: int
    payload: Any = None
    """DONE: a `Parcel` or the batch itself; FAILED: the exception; DIED: the `WorkerDied` to raise."""
    busy_ns: int = 0
    """Time the worker spent on the task."""


@dataclass(slots=True)
class Parcel:
    """A batch that still lies in a slot: a small header, and the number of bytes it refers to."""

    header: Any
    slot: int
    used: int
    overflow: Any = None
    """Memory of its own, when the slot could not hold the batch."""


@dataclass(frozen=True)
class WorkerSpec:
    """Everything a worker needs to know, the same for all workers of an engine."""

    dataset: Any
    kind: DatasetKind
    collate: Callable[[Any], Any]
    framework: Any
    """A `feedline.abc.Framework`, which this rung may not name."""
    worker_count: int
    base_seed: int
    batched: bool = True
    """False: indices are single samples and `collate` converts one sample (torch's batch_size=None)."""
    drop_last: bool = False
    init: Callable[[int], None] | None = None
    shared_seed: int | None = None
    """Seed that all workers and ranks share, for torch's data pipes."""


@dataclass(frozen=True)
class WorkerIdentity:
    """Who a worker is."""

    id: int
    count: int
    seed: int
    dataset: Any
    threaded: bool = False
