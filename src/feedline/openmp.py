"""GNU OpenMP, the library behind torch's intra-op threads, as far as workers are concerned.

It keeps idle threads in a pool per thread that used it, and a thread's limit on how many it may use belongs to that
thread alone. Other OpenMP libraries look after forks themselves.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

_OMP_PAUSE_HARD = 2


def _libraries() -> list[ctypes.CDLL]:
    """Return every copy of the library this process has loaded; packages like to bring their own."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if "libgomp" in line}
    return [ctypes.CDLL(path) for path in sorted(paths)]


def dismiss_idle_threads() -> None:
    """End the idle threads of this thread's pool, so that a fork does not inherit a dead pool.

    They would not exist in the child, and a parallel region there would wait for them for ever. In this process they
    come back when needed.
    """
    for library in _libraries():
        pause = getattr(library, "omp_pause_resource_all", None)
        if pause is not None:
            pause(_OMP_PAUSE_HARD)


def limit_this_thread() -> None:
    """Let parallel regions that this thread begins run on this thread alone."""
    for library in _libraries():
        library.omp_set_num_threads(1)
