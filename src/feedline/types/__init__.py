"""Values that travel between folders."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypeGuard, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.system.optional import is_tensor
from feedline.system.ranks import Share
from feedline.types.position import Position as Position

if TYPE_CHECKING:
    from torch import Tensor


def is_finite(value: object) -> TypeGuard[float]:
    """True for finite numbers of Python and NumPy, but not for booleans."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    return math.isfinite(value)


def is_array(value: object) -> TypeGuard[NDArray[np.generic] | Tensor]:
    """True for NumPy arrays and torch tensors."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_arrays(value: object) -> bool:
    """True for an array, or a tuple or dict of arrays, of any lengths; an `ArrayDataset` is made of these.

    Example:
        >>> is_arrays({"x": np.zeros(3), "y": np.zeros(3)}), is_arrays([1, 2])
        (True, False)
    """
    if isinstance(value, (tuple, dict)):
        parts = value if isinstance(value, tuple) else value.values()
        return len(value) > 0 and all(map(is_array, parts))
    return is_array(value)


class DatasetKind(Enum):
    """How samples come out of a dataset."""

    MAP = "map"
    ITERABLE = "iterable"


@dataclass(frozen=True, slots=True)
class Key:
    """The seed and epoch that determine the order of an epoch."""

    seed: int
    epoch: int


EngineName: TypeAlias = Literal["auto", "inline", "thread", "process", "ray"]

CollateFunction: TypeAlias = Callable[[Any], Any]
"""Takes the samples of a batch, or one sample, and returns the batch: torch's function, ours or the user's own. Any:
only the function knows their types."""

State: TypeAlias = dict[str, Any]
"""What `state_dict` returns, or a part of it. Any: the part that saved an entry also reads it, and checks it."""

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object, written or read. Any: its reader knows the entries by name."""

T_co = TypeVar("T_co", covariant=True)


class MapStyle(Protocol[T_co]):
    """Any map-style dataset, as type checkers see it: feedline's own datasets are not subclasses of torch's."""

    # Any: what a sampler yields.
    def __getitem__(self, index: Any, /) -> T_co: ...

    def __len__(self) -> int: ...


@dataclass(slots=True)
class IndexBlock:
    """Indices that feedline's own plan made: one integer array. A user's array is never wrapped in this."""

    array: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, place: int) -> int:
        return int(self.array[place])


@dataclass(slots=True)
class Draw:
    """The source of a batch's random numbers: sample i of it has the key `mix(key, first + stride * i)`."""

    key: int
    first: int = 0
    stride: int = 1


@dataclass(frozen=True, slots=True)
class Span:
    """A step of all ranks through a sample stream that each worker reads completely, keeping its own samples."""

    number: int
    """The step of the epoch, counted from where the epoch was entered."""
    origin: int = 0
    """How many samples of the stream all ranks together had consumed where the epoch was entered."""


@dataclass(slots=True)
class Call:
    """A dataset method to call in a worker, instead of making a batch."""

    name: str
    arguments: tuple[object, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Notes:
    """Extra information that a worker sends with a batch; most batches have none."""

    position: Position | None = None
    """Where the worker is after the batch; None if that follows from its answer before."""
    shards_itself: bool = False
    """True if the dataset queried its worker id although the loader shards the samples."""
    faults: list[Any] = field(default_factory=list)
    """Samples that failed: `feedline.abc.faults.Fault`, which this file may not import."""
    left_out: int = 0
    """At the end of a stream: samples, failed ones included, that were read for a batch that was not made."""
    receipts: object = None
    """Receipts for the samples of the batch, from a dataset that is notified when they are consumed."""
    digests: tuple[tuple[int, bytes], ...] = ()
    """Digests of samples of a stream, by place, that show whether the workers' streams are as they should be."""


@dataclass(slots=True)
class Task:
    """The work for one batch, or for the next batch of one worker's stream."""

    id: int
    """Unique for the life of an engine, so that an answer from an abandoned epoch is recognised."""
    indices: Any
    """What the plan requests: an `IndexBlock`, a list, one index, a `Span`; the sample count of a worker's own stream;
    a `Call`."""
    slot: int = -1
    """Number of the slot the batch may be written to; -1 when there is none."""
    epoch: int = 0
    """A worker that sees a higher number than before restarts its stream."""
    shared_seed: int | None = None
    """Seed of the epoch that all workers and ranks share, for torch's data pipes."""
    draw: Draw = field(default_factory=lambda: Draw(0))
    resume: Position | None = None
    """With the first task of an epoch: where to resume."""
    snapshot: bool = False
    """True if the answer should hold the states of dataset and iterator, if they have any."""
    skip: tuple[int, ...] = ()
    """Positions whose samples are known to fail and are not fetched."""


@dataclass(slots=True)
class TaskNotes:
    """Extra timings that a worker reports for a task; most tasks have none."""

    stages: dict[str, int] = field(default_factory=dict)
    """Nanoseconds in stages named by the user, or "transform"."""
    slow: list[tuple[int, object]] = field(default_factory=list)
    """Slow samples: nanoseconds, and the index."""
    packed: tuple[int, int] = (0, 0)
    """Of packed rows: their tokens, and the tokens and padding together."""


TIMES = struct.Struct("<qqqqq")

TaskTimes = tuple[int, int, int, int, int]
"""When a worker started a task (`time.monotonic_ns`; 0 if not reported), and nanoseconds: fetching, collating, CPU time
(-1 if not reported), and ready to run without a core."""

NO_TIMES: TaskTimes = (0, 0, 0, -1, 0)


class ResultKind(Enum):
    """The outcome of a task."""

    DONE = 1
    FAILED = 2
    ENDED = 3
    DIED = 4
    EMPTY = 5
    """All samples of the batch were skipped."""


@dataclass(slots=True)
class Result:
    """What an engine reports about one task."""

    kind: ResultKind
    worker: int
    task_id: int
    payload: Any = None
    """DONE: a `SlotBatch` or the batch itself; FAILED: the exception; DIED: the `WorkerDied` to raise."""
    busy_ns: int = 0
    """Time the worker spent on the task."""
    notes: Notes | None = None
    position: Position | None = None
    """Where the worker is after the batch; filled in by the consumer."""
    times: bytes | TaskTimes = NO_TIMES
    """DONE: how the worker spent `busy_ns`. May be packed by `TIMES`, since most are never read."""
    task_notes: TaskNotes | None = None
    first: bool = False
    """True if this is its worker's first answer; filled in by the consumer, as are the fields below."""
    flight: Any = None
    """The task that this answers, as the core knows it."""

    @property
    def task_times(self) -> TaskTimes:
        """`times`, unpacked."""
        times = self.times
        return TIMES.unpack(times) if type(times) is bytes else times  # type: ignore[return-value]


@dataclass(slots=True)
class SlotBatch:
    """A batch that is still in a slot: a small header, and the number of bytes it refers to.

    Without a slot and a reader, the batch follows the header.
    """

    header: Any
    slot: int
    used: int
    reader: Any = None
    """Reads the batch's own memory, if the batch has no slot or did not fit it."""
    batch: Any = None
    """The decoded batch, if it was decoded already."""


@dataclass(frozen=True)
class StreamSharding:
    """How the samples of one stream are sharded over ranks; every worker reads the whole stream."""

    batch_size: int
    """Samples of a batch; 1 if samples are delivered one by one."""
    share: Share
    drop_last: bool = False


@dataclass(frozen=True)
class WorkerIdentity:
    """The identity of a worker."""

    id: int
    count: int
    seed: int
    dataset: Any
    threaded: bool = False
