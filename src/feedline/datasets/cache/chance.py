"""Whether making a sample draws random numbers: such a sample is another one every time, and not to be kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from feedline.randomness.scope import GlobalStates, Scope, enter, enter_task, numpy_has_one_in_store, rng


class Watch(Scope):
    """Stands before the scope of this thread, and takes note of everybody who asks for `feedline.rng()`."""

    def __init__(self) -> None:
        super().__init__()
        self.generators: list[str] = []
        """Those from which something was drawn."""
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
        """Watch what the coroutine that calls this, and nobody else, draws from `feedline.rng()`."""
        self._enter = enter_task
        self._outer = enter_task(self)
        try:
            yield
        finally:
            enter_task(self._outer)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch what is drawn inside.

        The generators of the process are watched on the main thread only: on others nobody knows who draws from them.
        """
        is_alone = threading.current_thread() is threading.main_thread()
        before = GlobalStates.now() if is_alone else None
        had_one = is_alone and numpy_has_one_in_store()
        self._outer = enter(self)
        try:
            yield
        finally:
            enter(self._outer)
        if before is None:
            return
        names = GlobalStates.now().differing(before)
        if had_one and "numpy.random" not in names and not numpy_has_one_in_store():
            names.append("numpy.random")  # a number that had been made before, and leaves no other trace
        self.generators += names
