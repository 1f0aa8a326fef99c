"""Contracts between the parts."""

from feedline.abc.engine import Engine
from feedline.abc.framework import Framework
from feedline.abc.scheduler import Scheduler, WorkerView

__all__ = ["Engine", "Framework", "Scheduler", "WorkerView"]
