"""Counts the resources of a program's processes: memory, descriptors, threads, memory for batches."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from feedline.system.process import rolled_up
from tests.mappings import of_feedline


@dataclass(frozen=True)
class Census:
    """The figures of one moment, summed over all processes of a program."""

    seconds: float
    """Since the start of the soak."""
    life: int
    memory_bytes: int
    """Each page once, without pages of files, whose share depends on processes outside the program."""
    rss_bytes: int
    batch_bytes: int
    """Memory for batches (memfd and anonymous shared memory), in proportion to the processes that map it."""
    descriptors: int
    threads: int
    processes: int


def members(session: int) -> list[int]:
    """List the living processes of a session. Each program has its own session, and its orphans stay in it."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, _, _, own = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state not in "ZX":
                found.append(int(name))
    return found


def count(session: int, *, seconds: float, life: int) -> Census:
    """Count the resources of a program. Processes that end while they are being read do not count."""
    memory = rss = batches = descriptors = threads = processes = 0
    for pid in members(session):
        with contextlib.suppress(OSError):
            descriptors += len(os.listdir(f"/proc/{pid}/fd"))
            threads += len(os.listdir(f"/proc/{pid}/task"))
            memory += rolled_up(pid, ("Pss_Anon", "Pss_Shmem")) or 0
            rss += rolled_up(pid, ("Rss",)) or 0
            batches += sum(mapping.sizes.get("Pss", 0) for mapping in of_feedline(pid))
            processes += 1
    return Census(round(seconds, 1), life, memory, rss, batches, descriptors, threads, processes)
