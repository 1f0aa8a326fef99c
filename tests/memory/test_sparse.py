"""Reserving far more addresses than memory, as far as the system allows."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from feedline.memory.arena import Arena
from feedline.memory.sparse import create_memfd, map_again, map_file, map_sparse
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


@pytest.mark.parametrize("shared", [True, False])
def test_slots_are_smaller_under_an_address_space_limit(shared: bool) -> None:
    output = run_limited(f"""
        limit(1 << 30)
        arena = Arena(16, shared={shared}, budget=1 << 30)
        lease = arena.lease(arena.acquire(), 0, 1 << 20)
        lease[:] = 5
        print(int(lease.sum()), arena.slot_bytes)
    """)
    total, slot_bytes = map(int, output.split())
    assert total == 5 << 20
    assert 8 << 20 <= slot_bytes <= 64 << 20


def test_without_addresses_the_error_names_the_limit() -> None:
    output = run_limited("""
        limit(1 << 20)
        try:
            Arena(1024, shared=True, budget=1 << 30)
        except TransportError as exc:
            print(exc)
    """)
    assert "ulimit -v" in output
    assert "fewer workers" in output


def test_a_refused_memfd_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((OSError, OverflowError)):
        create_memfd(-1)
    assert len(os.listdir("/proc/self/fd")) == before


# -- the size of slots ---


@pytest.mark.parametrize("shared", [True, False])
def test_large_slots_are_aligned_to_huge_pages(shared: bool) -> None:
    for slot_count in (1, 3, 80, 1000):
        mapping, slot_bytes, fd = map_sparse(slot_count, shared=shared)
        assert slot_bytes > 100 << 20
        assert slot_bytes % (2 << 20) == 0
        assert len(mapping) == slot_bytes * slot_count
        if shared:
            assert os.fstat(fd).st_size == slot_bytes * slot_count
            os.close(fd)


FILE_LIMIT = """
    limit = int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
"""


@pytest.mark.parametrize("limit", [1 << 30, 64 << 20, 8 << 20, 1 << 20, 999_999])
def test_slots_are_smaller_under_a_file_size_limit(limit: int) -> None:
    output = run_limited(
        f"""{FILE_LIMIT}
    arena = Arena(80, shared=True, budget=1 << 30)
    for _ in range(3):
        lease = arena.lease(arena.acquire(), 0, arena.slot_bytes)
        lease[:] = 5
    arena.view(79)[-1] = 7
    print(arena.slot_bytes)
    """,
        limit,
    )
    assert limit // 2 < 80 * int(output) <= limit


@pytest.mark.slow
def test_a_file_size_limit_does_not_apply_to_private_memory() -> None:
    output = run_limited(f"{FILE_LIMIT}\n    print(Arena(16, shared=False, budget=1 << 30).slot_bytes)", 1 << 20)
    assert int(output) > 1 << 30


@pytest.mark.slow
def test_the_error_names_the_file_size_limit_if_no_page_per_slot_fits() -> None:
    output = run_limited(
        f"""{FILE_LIMIT}
    try:
        Arena(80, shared=True, budget=1 << 30)
    except TransportError as exc:
        print(exc)
    """,
        100_000,
    )
    assert "ulimit -f" in output
    assert "100000 bytes" in output
    assert "ulimit -v" not in output


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "size"), [(1 << 30, 1 << 30), (8 << 20, 8 << 20), (10_000, 8192)])
def test_a_file_is_as_long_as_the_limit_allows(limit: int, size: int) -> None:
    output = run_limited(
        f"""{FILE_LIMIT}
    from feedline.memory.sparse import map_file, why_no_more
    mapping, fd = map_file(64 << 30)
    mapping[len(mapping) - 1] = 1
    print(len(mapping), why_no_more(len(mapping), 64 << 30))
    """,
        limit,
    )
    assert output.startswith(f"{size} The limit on file size (`ulimit -f`)")


@pytest.mark.slow
@pytest.mark.parametrize("spare", [1 << 30, 100_000])
def test_a_file_limited_by_the_address_space_names_that_limit(spare: int) -> None:
    output = run_limited(f"""
        from feedline.memory.sparse import map_file, why_no_more
        limit({spare})
        try:
            mapping, fd = map_file(64 << 30)
            print(len(mapping), why_no_more(len(mapping), 64 << 30))
        except TransportError as exc:
            print(0, exc)
    """)
    assert (spare > 1 << 20) == (int(output.split()[0]) >= 256 << 20)
    assert "ulimit -v" in output


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


@pytest.mark.slow
def test_a_file_in_locked_memory_is_not_filled() -> None:
    output = run_limited(
        f"""{LOCKED}
    from feedline.memory.sparse import map_file
    mapping, fd = map_file(1 << 30)
    print(len(mapping), status("VmLck") - before[0], status("VmRSS") - before[1])
    """,
        FUTURE,
    )
    if output.startswith("not allowed"):
        pytest.skip("needs the right to lock memory (CAP_IPC_LOCK, or ulimit -l)")
    size, locked, resident = map(int, output.split())
    assert size >= 512 << 20
    assert locked < 8 << 20
    assert resident < 8 << 20


# -- core dumps ---


def added(before: list[Mapping]) -> list[Mapping]:
    return [mapping for mapping in of_feedline(os.getpid()) if mapping not in before]


@pytest.mark.parametrize("shared", [True, False])
def test_slots_are_left_out_of_core_dumps(shared: bool) -> None:
    arena = Arena(4, shared=shared, budget=1 << 20)
    first, last = arena.address, arena.address + 4 * arena.slot_bytes
    # The system merges adjacent mappings, such as the arenas of other tests.
    (found,) = [one for one in of_feedline(os.getpid()) if one.start <= first and last <= one.start + one.size]
    assert "dd" in found.flags


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
