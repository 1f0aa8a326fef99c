"""How many cores there are for this process."""

from __future__ import annotations

import os


def core_count() -> int:
    """Return on how many cores this process may run, which a container or `taskset` often limits.

    Example:
        >>> 1 <= core_count() <= os.cpu_count()
        True
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
