"""Contracts between the parts."""

from feedline.abc.columnar import Columnar
from feedline.abc.engine import Engine
from feedline.abc.framework import Framework
from feedline.abc.sampler import BatchSampler, Sampler
from feedline.abc.scheduler import Scheduler, WorkerView

__all__ = ["BatchSampler", "Columnar", "Engine", "Framework", "Sampler", "Scheduler", "WorkerView"]
