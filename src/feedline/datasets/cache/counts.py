"""Counters that all processes add to, without a lock and without losing any.

Each process has a row of its own, so that nobody else writes there. A process that came later takes over the row of one
that has ended, and goes on adding to it: only the sum of the rows means anything.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.cache.ground import MemoryGround

NAMES = ("memory_hits", "disk_hits", "misses", "damaged", "random")
_ROWS, _COLUMNS = 256, 8
_PLACES = {name: 1 + number for number, name in enumerate(NAMES)}
BYTES = _ROWS * _COLUMNS * 8
"""How much of the ground they take, from its beginning."""

_one_thread = threading.Lock()


def _begin_child() -> None:
    global _one_thread
    _one_thread = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


class Counts:
    """Counters on a ground.

    Args:
        ground: at least `BYTES` long.
    """

    def __init__(self, ground: MemoryGround) -> None:
        self._ground = ground
        self._rows: NDArray[np.int64] | None = None
        self._numbers: memoryview | None = None
        """The same, which is quicker for single numbers."""
        self._own = (0, 0)
        """A process, and its row."""

    # Any: what pickle takes.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": None, "_numbers": None, "_own": (0, 0)}

    def _table(self) -> NDArray[np.int64]:
        if self._rows is None:
            self._rows = np.frombuffer(self._ground.map, np.int64, _ROWS * _COLUMNS).reshape(_ROWS, _COLUMNS)
        return self._rows

    def add(self, name: str, count: int = 1) -> None:
        """Count."""
        if self._numbers is None:
            self._numbers = memoryview(self._ground.map)[:BYTES].cast("q")
        pid, row = self._own
        if pid != os.getpid():
            row = self._claim(self._table())
        with _one_thread:  # threads of a process share its row
            self._numbers[row * _COLUMNS + _PLACES[name]] += count

    def _claim(self, rows: NDArray[np.int64]) -> int:
        pid = os.getpid()
        with self._ground.locked():
            owners = rows[:, 0].tolist()
            # With more living processes than rows some share the last one, and may lose a count.
            row = next((number for number, owner in enumerate(owners) if owner == pid or not _lives(owner)), _ROWS - 1)
            rows[row, 0] = pid
        self._own = (pid, row)
        return row

    def totals(self) -> dict[str, int]:
        """Return the sums over all processes that ever counted."""
        sums = self._table()[:, 1 : 1 + len(NAMES)].sum(axis=0).tolist()
        return dict(zip(NAMES, sums, strict=True))


def _lives(pid: int) -> bool:
    if pid == 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
