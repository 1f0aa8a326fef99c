"""The cores, memory and open files that the system grants this process, including control groups of both versions."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

from feedline.system.process import core_count


def usable_cores() -> int:
    """Return how many cores' worth of time this process gets: the cores it may run on, or the limit of its groups."""
    quota = cpu_quota(own_groups())
    return core_count() if quota is None else max(1, min(core_count(), int(quota)))


def memory_limit() -> int:
    """Return the memory this process may use: the machine's, or a lower limit of its control group or one above."""
    granted = [count[0] for path in _memory_limits(tuple(own_groups())) if (count := _numbers(path))]
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *granted])


@functools.lru_cache(1)  # most of them do not exist
def _memory_limits(groups: tuple[Path, ...]) -> list[Path]:
    paths = (folder / name for folder in groups for name in ("memory.max", "memory.limit_in_bytes"))
    return [path for path in paths if path.exists()]


def physical_bytes() -> tuple[int | None, int | None]:
    """Return the machine's memory, and how much of it is available without swapping."""
    if not hasattr(os, "sysconf"):
        return None, None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return total, None
    figures = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    free = figures.get("MemAvailable", "").split()[:1]
    return total, int(free[0]) << 10 if free else None


def shared_bytes() -> int | None:
    """Return the size of /dev/shm; None if there is none."""
    try:
        figures = os.statvfs("/dev/shm")
    except (AttributeError, OSError):
        return None
    return figures.f_blocks * figures.f_frsize


def limits_of(name: str) -> tuple[int | None, int | None]:
    """Return the soft and the hard limit of this process; None where there is none."""
    if sys.platform == "win32":
        return None, None
    import resource  # not on Windows

    soft, hard = resource.getrlimit(getattr(resource, name))
    return (None if soft == resource.RLIM_INFINITY else soft), (None if hard == resource.RLIM_INFINITY else hard)


def own_groups(root: Path = Path("/sys/fs/cgroup"), listing: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Return the folders of this process's control groups, of both versions, and of the groups above them."""
    try:
        return list(_groups_in(listing.read_text(), root))
    except OSError:
        return []


@functools.lru_cache(1)  # called every epoch, and the result hardly ever changes
def _groups_in(listing: str, root: Path) -> tuple[Path, ...]:
    folders: dict[Path, None] = {}
    for line in listing.splitlines():
        _, controllers, group = line.split(":", 2)
        # Version 1 has a tree per controller, or for several together.
        for top in (
            [root] if not controllers else [root / controllers, *(root / name for name in controllers.split(","))]
        ):
            own = top / group.lstrip("/")
            folders.update(dict.fromkeys(folder for folder in (own, *own.parents) if folder.is_relative_to(top)))
    return tuple(folders)


def cpu_quota(groups: list[Path]) -> float | None:
    """Return how many cores' worth of time control groups grant; None for no limit."""
    granted = []
    for folder in groups:
        quota, period = _numbers(folder / "cpu.max") or (-1, 0)  # version 2: both in one file
        if quota <= 0:
            quota, period = ((_numbers(folder / name) or [0])[0] for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
        if quota > 0 and period > 0:
            granted.append(quota / period)
    return min(granted, default=None)


def process_limit(groups: list[Path]) -> int | None:
    """Return how many processes and threads control groups allow; None for no limit."""
    return min((count[0] for folder in groups if (count := _numbers(folder / "pids.max"))), default=None)


def _numbers(path: Path) -> list[int] | None:
    """Return the numbers in a file; None if there is no such file, or it says "max" or the like."""
    try:
        return list(map(int, path.read_text().split())) or None
    except (OSError, ValueError):
        return None
