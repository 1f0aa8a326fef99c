"""Stages: named steps inside a task, and the time spent in them.

The loader times fetching and collating. A dataset names a step inside a fetch with `stage`. feedline's sources do so
for their transform, and so do feedline's own pipelines of transforms. Times go to the worker's scope and so to its
task; outside a loader nothing is measured.
"""

from __future__ import annotations

import time

from feedline.randomness.scope import Scope, current_scope

TRANSFORM = "transform"


class stage:  # noqa: N801  a context manager, which users call
    """Name a step of a dataset inside a context: `loader.stats()` shows its time as a separate stage.

    A stage nested inside itself counts once. Costs about a microsecond. Does nothing outside a loader.

    Args:
        name: of the stage, such as "decode"; "transform" is the loader's own name for everything done to a sample after
            it was read.

    Example:
        >>> import feedline
        >>> class Squares:
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         with feedline.stage("square"):
        ...             return index * index
        >>> loader = feedline.Loader(Squares(), 2)
        >>> batches = list(loader)
        >>> loader.stats().epoch.stages["square"].count
        2
    """

    __slots__ = ("_begun", "_name", "_scope")

    def __init__(self, name: str) -> None:
        self._name = name
        self._scope: Scope | None = None
        self._begun = 0

    def __enter__(self) -> None:
        scope = current_scope()
        # A negative number means that it is already entered, further up the stack.
        if scope is None or scope.stages.get(self._name, 0) < 0:
            return
        self._scope = scope
        scope.stages[self._name] = ~scope.stages.get(self._name, 0)
        self._begun = time.monotonic_ns()

    def __exit__(self, *_: object) -> None:
        scope, self._scope = self._scope, None
        if scope is not None:
            spent = time.monotonic_ns() - self._begun
            scope.stages[self._name] = ~scope.stages.get(self._name, -1) + spent
