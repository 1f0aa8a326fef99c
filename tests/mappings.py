"""The memory mappings of a process, and the processes of a session, as Linux reports them."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from pathlib import Path

_LARGE = 1 << 30


@dataclass(frozen=True)
class Mapping:
    """One range of addresses."""

    range: str
    size: int
    name: str
    flags: frozenset[str]
    """Two letters each, as in the kernel's documentation of VmFlags: `dd` is left out of dumps, `lo` is locked."""
    is_shared: bool
    sizes: dict[str, int] = field(compare=False)
    """Bytes, by the kernel's names: Pss, Anonymous, Private_Dirty and others."""

    @property
    def start(self) -> int:
        """The first address."""
        return int(self.range.partition("-")[0], 16)


def mappings(pid: int) -> list[Mapping]:
    """List the mappings of a process."""
    found, head, sizes = [], [""], dict[str, int]()
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            head, sizes = words, {}
        elif words[0] == "VmFlags:":
            start, end = (int(number, 16) for number in head[0].split("-"))
            name, is_shared = " ".join(head[5:]), head[1].endswith("s")
            found.append(Mapping(head[0], end - start, name, frozenset(words[1:]), is_shared, sizes))
        elif words[-1] == "kB":
            sizes[words[0][:-1]] = int(words[1]) << 10
    return found


def of_feedline(pid: int) -> list[Mapping]:
    """List the memory for batches that a process has mapped: files by their name, others by their size.

    No other writeable anonymous mapping is as large: reserved memory, such as the heaps of threads, is not writeable.
    """
    return [
        mapping
        for mapping in mappings(pid)
        if "memfd:feedline" in mapping.name or (not mapping.name and mapping.size > _LARGE and "wr" in mapping.flags)
    ]


def members(session: int) -> list[int]:
    """List the living processes of a session: a program started in one of its own, with its orphans."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, _, _, own = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:4]
            if int(own) == session and state not in "ZX":
                found.append(int(name))
    return found
