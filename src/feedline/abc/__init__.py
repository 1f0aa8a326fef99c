"""Contracts between the parts."""

from feedline.abc.engine import Engine
from feedline.abc.faults import ErrorPolicy
from feedline.abc.framework import Framework
from feedline.abc.sampler import BatchSampler, Sampler
from feedline.abc.scheduler import Scheduler, WorkerView
from feedline.abc.source import (
    AheadSource,
    Columnar,
    ColumnSource,
    Derived,
    EpochAware,
    Repeatable,
    Reshardable,
    Selection,
    ShardedSource,
    StreamSource,
)
from feedline.abc.stateful import Stateful
from feedline.abc.worker_spec import WorkerSpec

__all__ = [
    "AheadSource",
    "BatchSampler",
    "ColumnSource",
    "Columnar",
    "Derived",
    "Engine",
    "EpochAware",
    "ErrorPolicy",
    "Framework",
    "Repeatable",
    "Reshardable",
    "Sampler",
    "Scheduler",
    "Selection",
    "ShardedSource",
    "Stateful",
    "StreamSource",
    "WorkerSpec",
    "WorkerView",
]


def __dir__() -> list[str]:
    return __all__
