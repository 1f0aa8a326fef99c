"""What an engine passes to each of its workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from feedline.abc.faults import ErrorPolicy
from feedline.abc.framework import Framework
from feedline.abc.memory import Placement
from feedline.types import CollateFunction, DatasetKind, StreamSharding


@dataclass(frozen=True)
class WorkerSpec:
    """Everything a worker needs to know, identical for all workers of an engine.

    Example:
        >>> from feedline.abc import WorkerSpec
        >>> from feedline.frameworks.numpy import NumpyFramework
        >>> from feedline.types import DatasetKind
        >>> spec = WorkerSpec([1, 2, 3], DatasetKind.MAP, list, NumpyFramework(), worker_count=2, base_seed=0)
        >>> spec.batched, spec.drop_last
        (True, False)
    """

    dataset: Any
    kind: DatasetKind
    collate: CollateFunction
    framework: Framework
    worker_count: int
    base_seed: int
    batched: bool = True
    """False: indices are single samples and `collate` converts one sample (torch's batch_size=None)."""
    drop_last: bool = False
    init: Callable[[int], None] | None = None
    shared_seed: int | None = None
    """Seed that all workers and ranks share, for torch's data pipes."""
    seeded: bool = False
    """True if the process-wide random generators are seeded from each sample's key."""
    on_error: ErrorPolicy | None = None
    """How to handle a sample that fails; None to raise its exception."""
    sharding: StreamSharding | None = None
    """How the loader shards a stream of samples; None if each worker has its own stream."""
    placement: Placement = Placement.DATASET
    """Where deferred fields, such as images, are finished."""
