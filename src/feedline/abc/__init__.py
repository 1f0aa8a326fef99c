"""Contracts between the parts."""

from feedline.abc.columnar import Columnar
from feedline.abc.engine import Engine
from feedline.abc.error_policy import ErrorPolicy
from feedline.abc.framework import Framework
from feedline.abc.sampler import BatchSampler, Sampler
from feedline.abc.scheduler import Scheduler, WorkerView
from feedline.abc.selection import Derived, Selection
from feedline.abc.source import (
    AheadSource,
    ColumnSource,
    EpochAware,
    Repeatable,
    Reshardable,
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
