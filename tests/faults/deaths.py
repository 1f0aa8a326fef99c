"""Ways in which workers die, and things that happen once across processes. Without torch, so spawning is quick."""

from __future__ import annotations

import faulthandler
import os
import random
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import feedline

COUNT = 45
"""Samples of most datasets here; the last batch is short for every batch size."""


class Once:
    """Returns True only for the first call about something, across all processes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)

    def __call__(self, what: object) -> bool:
        try:
            os.close(os.open(self._folder / f"once-{what}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def times(self, what: object) -> int:
        """Return how often it was called about this, including this call."""
        fd = os.open(self._folder / f"times-{what}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        try:
            os.write(fd, b".")
            return os.lseek(fd, 0, os.SEEK_CUR)  # the position after this byte; the file may have grown since
        finally:
            os.close(fd)

    def count(self, what: object) -> int:
        """Return how often `times` was called about it."""
        path = self._folder / f"times-{what}"
        return path.stat().st_size if path.exists() else 0


def _at_once(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


WAYS: dict[str, tuple[Callable[[], None], str]] = {
    "killed": (_at_once(signal.SIGKILL), "SIGKILL"),
    "crashed": (_at_once(signal.SIGSEGV), "SIGSEGV"),
    "bus error": (_at_once(signal.SIGBUS), "SIGBUS"),
    "aborted": (os.abort, "SIGABRT"),
    "left": (lambda: os._exit(3), "exit code 3"),
    "exited": (lambda: sys.exit(4), "exit code 4"),
}
"""How a worker can end in the middle of a sample, and how that is reported."""


def die(way: str = "killed") -> None:
    """End this process without output and without a core dump."""
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    WAYS[way][0]()


class Mortal:
    """Sample i is i and three random numbers; workers die once over samples of `fatal`, if `once` is given."""

    def __init__(self, count: int, fatal: frozenset[int] = frozenset(), once: Once | None = None) -> None:
        self.count = count
        self.fatal = fatal
        self.once = once

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> NDArray[np.float64]:
        if index in self.fatal and self.once is not None and self.once(index):
            die()
        return np.array([index, random.random(), np.random.rand(), feedline.rng().random()])
