"""GNU OpenMP, the library behind torch's intra-op threads, and the OpenBLAS built on it, as far as they affect workers.

OpenMP keeps a pool of idle threads for each thread that used it. A thread's limit on their number belongs to that
thread alone. Other OpenMP libraries handle forks themselves.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re

_OPENMP, _OPENBLAS = "libgomp", "openblas"
_OMP_PAUSE_HARD = 2
_FORKED = 0x40  # PF_FORKNOEXEC, a flag in /proc/self/stat: forked, and no other program executed since


def _loaded(*names: str) -> list[str]:
    """Return the paths of every copy of these libraries that this process has loaded; packages bring their own."""
    try:
        with open("/proc/self/maps", "rb") as maps:
            text = maps.read()
    except FileNotFoundError:
        return []
    # By the name of the file: one library may be in a folder that is named after another.
    names_of_files = f"/[^\\n]*/[^/\\n]*(?:{'|'.join(names)})[^/\\n]*$"
    found = set(re.findall(names_of_files.encode(), text, re.MULTILINE))
    return sorted(os.fsdecode(path) for path in found if not path.endswith(b"(deleted)"))


def prepare_fork() -> list[ctypes.c_int]:
    """End the idle threads of this thread's pool, so that a fork does not inherit a dead pool.

    They would not exist in the child, and a parallel region there would wait for them forever. In this process they
    come back when needed. A process that was forked itself keeps its pool: its threads may be dead already, which
    cannot be detected, and ending them would wait for them. Its workers are safe while they compute on one thread.

    Returns:
        The thread limit of every loaded OpenBLAS that uses OpenMP, to be set to 1 in the child. Such a library holds a
        lock during every product on several threads. A process that is forked while another thread computes one
        inherits the lock without the thread that would release it. On one thread the lock is not taken. Test:
        tests/faults/test_fork_safety.py::test_loaders_start_while_other_threads_are_busy
    """
    keeps_pool = is_forked()
    limits: list[ctypes.c_int] = []
    for path in _loaded(_OPENMP, _OPENBLAS):
        library = ctypes.CDLL(path)
        if _OPENBLAS in os.path.basename(path):
            with contextlib.suppress(ValueError):  # built without OpenMP: it handles forks itself
                limits.append(ctypes.c_int.in_dll(library, "blas_omp_number_max"))
        elif not keeps_pool and hasattr(library, "omp_pause_resource_all"):
            library.omp_pause_resource_all(_OMP_PAUSE_HARD)
    return limits


def limit_this_thread() -> None:
    """Make parallel regions that this thread begins run on this thread alone."""
    for path in _loaded(_OPENMP):
        ctypes.CDLL(path).omp_set_num_threads(1)


def is_forked() -> bool:
    """True if this process was forked from another, and has executed no other program since."""
    try:
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        return False
    return bool(int(fields[6]) & _FORKED)
