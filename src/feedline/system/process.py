"""This process in the eyes of the system: the cores it may run on, its locks, what goes into its core dumps."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from typing import Any


def core_count() -> int:
    """Return on how many cores this process may run, which a container or `taskset` often limits.

    Example:
        >>> 1 <= core_count() <= os.cpu_count()
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def scheduled_s(pid: int) -> tuple[float, float]:
    """Return how long the main thread of a process has computed, and how long it could have and had no core.

    A thread may be given by its own id. The rest of the time it slept. Both are 0 where the system does not tell (not
    Linux), or the process is gone.

    Example:
        >>> scheduled_s(-1)
        (0.0, 0.0)
    """
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            computed_ns, queued_ns, _ = map(int, file.read().split())
    except (OSError, ValueError):
        return 0.0, 0.0
    return computed_ns / 1e9, queued_ns / 1e9


# Any: threading.RLock is a function, and its type has no name.
def lock_of_process() -> Any:
    """Return a reentrant lock that nobody has in a forked process, whichever thread of the parent had it."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]  # stubs forget it
    return lock


def leave_out_of_dumps(mapping: mmap.mmap) -> None:
    """Keep a mapping out of core dumps.

    Linux dumps every page of shared memory, and makes those for it that did not exist: with room for hundreds of
    gigabytes mapped, one crash would fill the memory and then the disk. Test: tests/faults/test_dumps.py
    """
    advice = getattr(mmap, "MADV_DONTDUMP", None)  # Linux only
    if advice is None:
        return
    try:
        mapping.madvise(advice)
    except OSError as exc:  # a kernel or sandbox that does not know it
        if exc.errno != errno.EINVAL:
            raise
