"""Reads CPU time and memory of this program's processes, and the load of other programs.

Everything is read from Linux: `/proc`, and the CPU clock that the kernel keeps for each process. Elsewhere, figures
that are not available are left out (None), never guessed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple

from feedline.system.process import rolled_up

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100

# /proc/stat counts in ticks of 10 ms per core: over less than this the load of others is mostly rounding.
SHORTEST_LOAD_SPAN_S = 0.5


def process_tree() -> list[int]:
    """List this process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir() if _PROC.is_dir() else ():
        if entry.name.isdigit() and (fields := _stat_fields(int(entry.name))):
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    tree = [os.getpid()]
    for pid in tree:  # grows while it is walked
        tree.extend(children.get(pid, ()))
    return tree


def cpu_seconds(pids: Iterable[int]) -> dict[int, float]:
    """Read the CPU seconds that each process has used so far, in all its threads; processes that ended are left out."""
    return {pid: seconds for pid in pids if (seconds := _process_cpu_s(pid)) is not None}


def cpu_used(before: dict[int, float], after: dict[int, float]) -> float:
    """Return the CPU seconds used between two readings; a process that started in between counts from zero."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def pss_bytes(*, kinds: Collection[str] = ("Pss",)) -> int | None:
    """Sum the proportional set size of this program's processes.

    Shared pages count once in total, which is what makes parent and workers comparable. Reading walks page tables and
    takes milliseconds per gigabyte: keep it outside timed spans.

    Args:
        kinds: the kinds of memory to count, as Linux names them: `Pss` is all, `Pss_Anon` and `Pss_Shmem` leave out
            mapped files.
    """
    sizes = [size for pid in process_tree() if (size := rolled_up(pid, kinds)) is not None]
    return sum(sizes) if sizes else None


def busy_seconds() -> float | None:
    """Read the CPU seconds that the whole machine has been busy since it started, stolen time included."""
    try:
        first = (_PROC / "stat").read_text().partition("\n")[0].split()
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in first[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS_PER_S


class Reading(NamedTuple):
    """The CPU seconds used so far, and when they were read."""

    own: dict[int, float]
    """By each of this program's processes."""
    busy_s: float | None
    """By all programs; None if the system does not report it."""
    at_s: float

    @classmethod
    def now(cls, pids: Iterable[int]) -> Reading:
        """Read those of the processes with these ids."""
        return cls(cpu_seconds(pids), busy_seconds(), time.perf_counter())

    def other_cores(self, later: Reading) -> float | None:
        """Return how many cores others kept busy since; None if the span was too short or this is not reported."""
        elapsed_s = later.at_s - self.at_s
        if self.busy_s is None or later.busy_s is None or elapsed_s < SHORTEST_LOAD_SPAN_S:
            return None
        return max(0.0, (later.busy_s - self.busy_s - cpu_used(self.own, later.own)) / elapsed_s)


def load_of_others() -> float | None:
    """Measure for half a second how many cores other programs keep busy; None if the system does not report it."""
    pids = process_tree()
    before = Reading.now(pids)
    time.sleep(SHORTEST_LOAD_SPAN_S)
    return before.other_cores(Reading.now(pids))


def _stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; the name before them may contain spaces and brackets."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _process_cpu_s(pid: int) -> float | None:
    try:
        # The kernel's CPU clock of another process, as clock_getcpuclockid(3) composes it: nanoseconds, not ticks.
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        fields = _stat_fields(pid)  # sandboxed kernels have no such clock; a dead process has neither
        return None if fields is None else (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
