"""This process in the eyes of the system: the cores it may run on, the memory that goes into its core dumps."""

from __future__ import annotations

import errno
import mmap
import os


def core_count() -> int:
    """Return on how many cores this process may run, which a container or `taskset` often limits.

    Example:
        >>> 1 <= core_count() <= os.cpu_count()
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_seconds(pid: int) -> float | None:
    """Return how long a process has computed so far; None if that cannot be had (not Linux, or it is gone).

    Example:
        >>> cpu_seconds(-1) is None
        True
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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
