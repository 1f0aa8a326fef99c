"""The resources that this machine offers a loader, as reported by the system."""

from __future__ import annotations

import multiprocessing
import os
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import feedline
from feedline.errors import MissingExtra
from feedline.system import cuda_queues
from feedline.system.limits import (
    cpu_quota,
    limits_of,
    memory_limit,
    own_groups,
    physical_bytes,
    process_limit,
    shared_bytes,
)
from feedline.system.optional import require
from feedline.system.process import core_count
from feedline.system.ranks import local_rank_count
from feedline.types import JsonObject
from feedline.workers import abilities


@dataclass(frozen=True)
class Machine:
    """Details reported by the system. None means that a fact is not reported, or that there is no limit."""

    system: str
    processor: str
    python: str
    feedline: str
    numpy: str
    torch: str | None
    torch_trouble: str | None
    """Why torch cannot be imported, although it is installed."""
    cuda: str | None
    """The version that torch was built for; None if there is no device to use it with."""
    devices: tuple[str, ...]
    decodes_jpegs: bool
    """True if a GPU can decode JPEG files: nvJPEG is installed."""
    cuda_queues: str | None
    """Hardware queues that CUDA streams share, as the environment of the program sets them."""
    torch_threads: int | None
    """Threads that one torch operation may use."""
    cores: int
    """Cores on which this process may run."""
    machine_cores: int
    cpu_quota: float | None
    """CPU time that the control group grants, in cores."""
    memory_bytes: int | None
    """Memory of the machine."""
    memory_limit_bytes: int | None
    """Memory that this process may use: the machine's, or the limit of its control group."""
    free_bytes: int | None
    """Memory of the machine that is free, without swapping."""
    local_ranks: int
    shared_bytes: int | None
    """Size of /dev/shm; None if there is none."""
    open_files: int | None
    """The limit `ulimit -n`."""
    open_files_most: int | None
    """The highest value to which the user may raise that limit."""
    processes: int | None
    """The limit `ulimit -u` or the limit of the control group, whichever is lower."""
    address_bytes: int | None
    """The limit `ulimit -v`."""
    file_bytes: int | None
    """The limit `ulimit -f`."""
    shares_arenas: bool
    start_method: str
    """Python's default start method."""


def collect_details() -> Machine:
    """Collect the details. Imports torch, if it is installed, to query it about CUDA."""
    soft_files, hard_files = limits_of("RLIMIT_NOFILE")
    physical, free = physical_bytes()
    groups = own_groups()
    allowed = [limit for limit in (limits_of("RLIMIT_NPROC")[0], process_limit(groups)) if limit is not None]
    return Machine(
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        processor=_processor(),
        python=platform.python_version(),
        feedline=feedline.__version__,
        numpy=np.__version__,
        **_torch_details(),
        cores=core_count(),
        machine_cores=os.cpu_count() or 1,
        cpu_quota=cpu_quota(groups),
        memory_bytes=physical,
        memory_limit_bytes=None if physical is None else memory_limit(),
        free_bytes=free,
        local_ranks=local_rank_count(),
        shared_bytes=shared_bytes(),
        open_files=soft_files,
        open_files_most=hard_files,
        processes=min(allowed, default=None),
        address_bytes=limits_of("RLIMIT_AS")[0],
        file_bytes=limits_of("RLIMIT_FSIZE")[0],
        shares_arenas=abilities.can_share_arenas(),
        start_method=multiprocessing.get_all_start_methods()[0],  # asking for the current one would set it for good
    )


# object: the details of `Machine` that torch knows.
def _torch_details() -> JsonObject:
    details: dict[str, object] = dict.fromkeys(("torch", "torch_trouble", "cuda", "torch_threads"))
    details.update(devices=(), decodes_jpegs=False, cuda_queues=os.environ.get(cuda_queues.VARIABLE))
    try:
        torch = require("torch", extra="torch", purpose="`feedline.DataLoader`")
    except MissingExtra:
        return details
    except (ImportError, OSError) as exc:  # a library that torch needs is missing, or has the wrong version
        return {**details, "torch_trouble": f"{type(exc).__name__}: {exc}"}
    details.update(torch=str(torch.__version__), torch_threads=torch.get_num_threads())
    if torch.cuda.is_available():
        details["cuda"] = torch.version.cuda or torch.version.hip
        details["devices"] = tuple(map(torch.cuda.get_device_name, range(torch.cuda.device_count())))
        from feedline.device import nvjpeg  # needs torch

        details["decodes_jpegs"] = nvjpeg.is_available()
    return details


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    details = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    return details.get("model name") or f"implementer {details.get('CPU implementer')} part {details.get('CPU part')}"
