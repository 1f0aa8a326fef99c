"""What this machine offers a loader, as the system tells it."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import feedline
from feedline._optional import require
from feedline.driver.settings import local_rank_count, memory_limit
from feedline.engines import abilities
from feedline.errors import MissingExtra
from feedline.system.process import core_count


@dataclass(frozen=True)
class Machine:
    """What the system says. None is what it does not say, or has no limit on."""

    system: str
    processor: str
    python: str
    feedline: str
    numpy: str
    torch: str | None
    torch_trouble: str | None
    """Why torch cannot be imported, although it is installed."""
    cuda: str | None
    """The version that torch was built for, if there is a device to use it with."""
    devices: tuple[str, ...]
    torch_threads: int | None
    """Threads that one operation of torch's may use."""
    cores: int
    """On which this process may run."""
    machine_cores: int
    cpu_quota: float | None
    """Cores' worth of time that the control group grants."""
    memory_bytes: int | None
    """Of the machine."""
    memory_limit_bytes: int | None
    """That this process may use: the machine's, or that of its control group."""
    free_bytes: int | None
    """Of the machine, without swapping."""
    local_ranks: int
    shared_bytes: int | None
    """Size of /dev/shm; None if there is none."""
    open_files: int | None
    """The limit `ulimit -n`."""
    open_files_most: int | None
    """Up to which a user may raise it."""
    processes: int | None
    """The limit `ulimit -u`, or that of the control group."""
    address_bytes: int | None
    """The limit `ulimit -v`."""
    file_bytes: int | None
    """The limit `ulimit -f`."""
    shares_arenas: bool
    start_method: str
    """Python's default."""


def look() -> Machine:
    """Read the facts. Imports torch, if it is there, to ask it about CUDA."""
    soft_files, hard_files = _limits("RLIMIT_NOFILE")
    physical, free = _physical_bytes()
    groups = own_groups()
    allowed = [limit for limit in (_limits("RLIMIT_NPROC")[0], process_limit(groups)) if limit is not None]
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        python=platform.python_version(),
        feedline=feedline.__version__,
        numpy=np.__version__,
        **_look_at_torch(),
        cores=core_count(),
        machine_cores=os.cpu_count() or 1,
        cpu_quota=cpu_quota(groups),
        memory_bytes=physical,
        memory_limit_bytes=None if physical is None else memory_limit(),
        free_bytes=free,
        local_ranks=local_rank_count(),
        shared_bytes=_shared_bytes(),
        open_files=soft_files,
        open_files_most=hard_files,
        processes=min(allowed, default=None),
        address_bytes=_limits("RLIMIT_AS")[0],
        file_bytes=_limits("RLIMIT_FSIZE")[0],
        shares_arenas=abilities.can_share_arenas(),
        start_method=multiprocessing.get_all_start_methods()[0],  # asking for the current one would settle it
    )


# Any: the facts of `Machine` that torch knows.
def _look_at_torch() -> dict[str, Any]:
    facts: dict[str, Any] = dict.fromkeys(("torch", "torch_trouble", "cuda", "torch_threads"))
    facts["devices"] = ()
    try:
        torch = require("torch", extra="torch", purpose="`feedline.DataLoader`")
    except MissingExtra:
        return facts
    except (ImportError, OSError) as exc:  # a library that it needs is missing, or of another version
        return {**facts, "torch_trouble": f"{type(exc).__name__}: {exc}"}
    facts.update(torch=str(torch.__version__), torch_threads=torch.get_num_threads())
    if torch.cuda.is_available():
        facts["cuda"] = torch.version.cuda or torch.version.hip
        facts["devices"] = tuple(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    return facts.get("model name") or f"implementer {facts.get('CPU implementer')} part {facts.get('CPU part')}"


def _physical_bytes() -> tuple[int | None, int | None]:
    """Return the machine's memory, and what of it can be had without swapping."""
    if not hasattr(os, "sysconf"):
        return None, None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        return total, None
    facts = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    free = facts.get("MemAvailable", "").split()[:1]
    return total, int(free[0]) << 10 if free else None


def _shared_bytes() -> int | None:
    try:
        facts = os.statvfs("/dev/shm")
    except (AttributeError, OSError):
        return None
    return facts.f_blocks * facts.f_frsize


def _limits(name: str) -> tuple[int | None, int | None]:
    """Return the soft and the hard limit of this process; None where there is none."""
    if sys.platform == "win32":
        return None, None
    import resource  # not on Windows

    soft, hard = resource.getrlimit(getattr(resource, name))
    return (None if soft == resource.RLIM_INFINITY else soft), (None if hard == resource.RLIM_INFINITY else hard)


def own_groups(root: Path = Path("/sys/fs/cgroup"), listing: Path = Path("/proc/self/cgroup")) -> list[Path]:
    """Return the folders of the control groups that this process is in, of both versions, and of those above them."""
    try:
        lines = listing.read_text().splitlines()
    except OSError:
        return []
    folders: dict[Path, None] = {}
    for line in lines:
        _, controllers, group = line.split(":", 2)
        # Version 1 has a tree per controller, sometimes of several.
        for top in (
            [root] if not controllers else [root / controllers, *(root / name for name in controllers.split(","))]
        ):
            own = top / group.lstrip("/")
            folders.update(dict.fromkeys(folder for folder in (own, *own.parents) if folder.is_relative_to(top)))
    return list(folders)


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
        words = path.read_text().split()
    except OSError:
        return None
    return [int(word) for word in words] if words and all(word.lstrip("-").isdecimal() for word in words) else None
