"""GNU OpenMP, the library behind torch's intra-op threads, and the OpenBLAS built on it, as far as they affect workers.

OpenMP keeps a pool of idle threads for each thread that used it. A thread's limit on their number belongs to that
thread alone. Other OpenMP libraries handle forks themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

_OMP_PAUSE_HARD = 2
_FORKED = 0x40  # PF_FORKNOEXEC, a flag in /proc/self/stat: forked, and no other program executed since


def _libraries(name: str = "libgomp") -> list[ctypes.CDLL]:
    """Return every copy of a library that this process has loaded; packages often bring their own."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    paths = {line.split()[-1] for line in maps.read_text().splitlines() if name in line}
    return [ctypes.CDLL(path) for path in sorted(paths)]


def blas_limits() -> list[ctypes.c_int]:
    """Return the thread limit of every loaded OpenBLAS that uses OpenMP, to be set to 1 after a fork.

    Such a library holds a lock during every product on several threads. A process that is forked while another thread
    computes one inherits the lock without the thread that would release it. On one thread the lock is not taken.
    Test: tests/faults/test_fork_safety.py::test_workers_start_while_torch_computes_on_threads
    """
    limits = []
    for library in _libraries("openblas"):
        with contextlib.suppress(ValueError):  # built without OpenMP: it handles forks itself
            limits.append(ctypes.c_int.in_dll(library, "blas_omp_number_max"))
    return limits


def dismiss_idle_threads() -> None:
    """End the idle threads of this thread's pool, so that a fork does not inherit a dead pool.

    They would not exist in the child, and a parallel region there would wait for them forever. In this process they
    come back when needed. A process that was forked itself keeps its pool: its threads may be dead already, which
    cannot be detected, and ending them would wait for them. Its workers are safe while they compute on one thread.
    """
    if is_forked():
        return
    for library in _libraries():
        pause = getattr(library, "omp_pause_resource_all", None)
        if pause is not None:
            pause(_OMP_PAUSE_HARD)


def limit_this_thread() -> None:
    """Make parallel regions that this thread begins run on this thread alone."""
    for library in _libraries():
        library.omp_set_num_threads(1)


def is_forked() -> bool:
    """True if this process was forked from another, and has executed no other program since."""
    stat = Path("/proc/self/stat")
    return stat.exists() and bool(int(stat.read_bytes().rpartition(b")")[2].split()[6]) & _FORKED)
