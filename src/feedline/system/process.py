"""Processes as the system sees them: the cores they may run on, memory, locks, the contents of core dumps."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Collection

_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def core_count() -> int:
    """Return how many cores this process may run on, which a container or `taskset` often limits.

    Example:
        >>> 1 <= core_count() <= os.cpu_count()
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def scheduled_s(pid: int) -> tuple[float, float]:
    """Return how long the main thread of a process has computed, and how long it was ready to run without a core.

    `pid` may also be the id of a thread. The rest of the time it slept. Both are 0 if the system does not report them
    (not Linux), or the process is gone.

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


def seen_bytes(pid: int) -> int | None:
    """Return an upper bound of a process's private memory, including pages shared with the process it was forked from.

    Takes microseconds. Returns None if it is not available (not Linux, or the process is gone).
    """
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            _, resident, shared, *_ = file.read().split()
    except OSError:
        return None
    return (int(resident) - int(shared)) * _PAGE


def own_bytes(pid: int) -> int | None:
    """Return the memory that a process shares with no other; None if that is not available.

    Takes a millisecond per gigabyte. Differences of `seen_bytes` would not work: a forked worker that fills memory
    which the training process had returned to its heap takes copies of those pages, while `seen_bytes` stays the same.
    """
    return rolled_up(pid, ("Private_Dirty",))


def rolled_up(pid: int, names: Collection[str]) -> int | None:
    """Return how many bytes of these kinds, in Linux's terms, a process has; None if that is not available."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as file:
            sizes = [int(line.split()[1]) << 10 for line in file if line.partition(":")[0] in names]
    except OSError:
        return None
    return sum(sizes) if sizes else None


def lock_of_process() -> threading.RLock:
    """Return a reentrant lock that is free in a forked process, even if a thread of the parent held it."""
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)  # type: ignore[attr-defined]  # stubs forget it
    return lock


def leave_out_of_dumps(mapping: mmap.mmap) -> None:
    """Keep a mapping out of core dumps.

    Linux dumps every page of shared memory, and creates those that did not exist: with hundreds of gigabytes mapped,
    one crash would fill the memory and then the disk. Test: tests/memory/test_sparse.py
    """
    advice = getattr(mmap, "MADV_DONTDUMP", None)  # Linux only
    if advice is None:
        return
    try:
        mapping.madvise(advice)
    except OSError as exc:  # a kernel or sandbox that does not support it
        if exc.errno != errno.EINVAL:
            raise
