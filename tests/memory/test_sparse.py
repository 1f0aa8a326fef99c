"""Reserving far more addresses than memory, as far as the system allows."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from feedline.memory.sparse import map_again, map_file
from tests.mappings import Mapping, of_feedline

UNDER_A_LIMIT = """
import resource, sys
import numpy as np
from feedline.errors import TransportError
from feedline.memory.arena import Arena

def limit(spare):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, used + spare))
"""


def run_limited(program: str, *words: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_LIMIT + textwrap.dedent(program), *map(str, words)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- the size of slots ---


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("limit", "least", "most"),
    [
        ("limit(1 << 30)", 512 << 20, 1 << 30),
        *(
            (f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))", size // 2, size)
            for size in (8 << 20, 999_999)
        ),
    ],
)
def test_slots_are_smaller_under_a_limit_on_addresses_or_file_size(
    limit: str, least: int, most: int, shared: bool
) -> None:
    if "FSIZE" in limit and not shared:
        pytest.skip("private memory is no file")
    output = run_limited(f"""
        {limit}
        arena = Arena(16, shared={shared}, budget=1 << 30)
        for _ in range(3):
            lease = arena.lease(arena.acquire(), 0, arena.slot_bytes)
            lease[:] = 5
        arena.view(15)[-1] = 7
        print(arena.slot_bytes)
    """)
    assert least // 4 < 16 * int(output) <= most


# -- locked memory ---

LOCKED = """
    import ctypes, mmap
    def status(name):
        return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(name))
    if ctypes.CDLL(None).mlockall(int(sys.argv[1])):
        print("not allowed")
        sys.exit()
    resource.setrlimit(resource.RLIMIT_AS, (status("VmSize") + (4 << 30),) * 2)  # or the machine would be full
    before = status("VmLck"), status("VmRSS")
"""
FUTURE = 2
CURRENT = 1


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("flags", [FUTURE, FUTURE | CURRENT])
def test_locked_memory_is_not_filled(shared: bool, flags: int) -> None:
    output = run_limited(
        f"""{LOCKED}
    arena = Arena(8, shared={shared}, budget=1 << 30)
    lease = arena.lease(arena.acquire(), 0, 1 << 20)
    lease[:] = 5
    print(arena.slot_bytes * 8, status("VmLck") - before[0], status("VmRSS") - before[1])
    # Pages of it can be given back, which a locked mapping does not allow.
    arena.mapping.madvise(mmap.MADV_REMOVE if {shared} else mmap.MADV_DONTNEED, 0, 1 << 20)
    print(lease[0])
    """,
        flags,
    )
    if output.startswith("not allowed"):
        pytest.skip("needs the right to lock memory (CAP_IPC_LOCK, or ulimit -l)")
    size, locked, resident, value = map(int, output.split())
    assert size >= 512 << 20
    assert locked < 8 << 20
    assert resident < 8 << 20
    assert value == 0


# -- core dumps ---


def added(before: list[Mapping]) -> list[Mapping]:
    return [mapping for mapping in of_feedline(os.getpid()) if mapping not in before]


@pytest.mark.parametrize("private", [True, False])
def test_files_are_left_out_of_core_dumps_wherever_they_are_mapped(private: bool) -> None:
    before = of_feedline(os.getpid())
    mapping, fd = map_file(4 << 20)
    again = map_again(fd, 1 << 20, offset=2 << 20, private=private)
    found = added(before)
    assert sorted(entry.size for entry in found) == [1 << 20, 4 << 20]
    assert all("dd" in entry.flags for entry in found)
    os.close(fd)
    del mapping, again
