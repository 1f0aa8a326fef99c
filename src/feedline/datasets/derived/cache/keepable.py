"""Whether the samples of a dataset can be cached, and whether making a sample draws random numbers."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from feedline.abc.source import EpochAware
from feedline.datasets.framework.kind import kind_of
from feedline.errors import BadOption
from feedline.randomness.global_states import GlobalStates
from feedline.randomness.scope import Scope, enter, enter_task, rng
from feedline.types import DatasetKind


def check_dataset(dataset: object, *, freeze_random: bool) -> None:
    """Refuse a dataset whose samples cannot be cached."""
    name = type(dataset).__name__
    if kind_of(dataset, "dataset") is DatasetKind.ITERABLE:
        raise BadOption(
            f"A {name} has no __getitem__, so its samples cannot be identified. Store what it yields in files, or pass "
            "a map-style dataset."
        )
    one, several = (getattr(type(dataset), getter, None) for getter in ("__getitem__", "__getitems__"))
    if inspect.iscoroutinefunction(several) and not inspect.iscoroutinefunction(one):
        raise BadOption(
            f"A {name} has an async __getitems__, but its __getitem__ is not async, and a cache requests single "
            "samples. Make both async."
        )
    if isinstance(dataset, EpochAware):
        changes = dataset.changes_with_epoch
    else:
        changes = callable(getattr(dataset, "set_epoch", None))
    if changes and not freeze_random:
        raise BadOption(
            f"A {name} has a set_epoch: its samples depend on the epoch, and only those of one epoch would be cached. "
            "Cache the dataset inside it, or pass freeze_random=True to keep the samples of one epoch anyway."
        )


class RandomWatch(Scope):
    """Wraps the scope of this thread and records calls of `feedline.rng()`.

    A sample that draws random numbers differs every time and must not be cached.
    """

    def __init__(self) -> None:
        super().__init__()
        self.generators: list[str] = []
        """Generators from which numbers were drawn."""
        self._outer: Scope | None = None
        self._enter = enter

    def generator(self) -> np.random.Generator:
        if "feedline.rng()" not in self.generators:
            self.generators.append("feedline.rng()")
        self._enter(self._outer)
        try:
            return rng()
        finally:
            self._enter(self)

    @contextmanager
    def watching_task(self) -> Iterator[None]:
        """Watch what the calling coroutine, and no other, draws from `feedline.rng()`."""
        self._enter = enter_task
        self._outer = enter_task(self)
        try:
            yield
        finally:
            enter_task(self._outer)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch random numbers drawn inside the context.

        The generators of the process are watched on the main thread only: on others, draws cannot be attributed.
        """
        is_alone = threading.current_thread() is threading.main_thread()
        before = GlobalStates.now() if is_alone else None
        self._outer = enter(self)
        try:
            yield
        finally:
            enter(self._outer)
        if before is not None:
            self.generators += GlobalStates.now(before).differing(before)
