"""Far more addresses than memory, as far as the system grants them."""

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
def test_under_a_limit_on_addresses_slots_are_smaller(shared: bool) -> None:
    told = run_limited(f"""
        limit(1 << 30)
        arena = Arena(16, shared={shared}, budget=1 << 30)
        lease = arena.lease(arena.acquire(), 0, 1 << 20)
        lease[:] = 5
        print(int(lease.sum()), arena.slot_bytes)
    """)
    total, slot_bytes = map(int, told.split())
    assert total == 5 << 20
    assert 8 << 20 <= slot_bytes <= 64 << 20


def test_without_addresses_the_error_names_the_limit() -> None:
    told = run_limited("""
        limit(1 << 20)
        try:
            Arena(1024, shared=True, budget=1 << 30)
        except TransportError as exc:
            print(exc)
    """)
    assert "ulimit -v" in told
    assert "fewer workers" in told


def test_a_refused_memfd_leaves_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises((OSError, OverflowError)):
        create_memfd(-1)
    assert len(os.listdir("/proc/self/fd")) == before


# -- the size of slots ---


@pytest.mark.parametrize("shared", [True, False])
def test_slots_begin_with_a_huge_page_where_they_are_that_large(shared: bool) -> None:
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
def test_under_a_limit_on_the_size_of_files_slots_are_smaller(limit: int) -> None:
    told = run_limited(
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
    assert limit // 2 < 80 * int(told) <= limit


@pytest.mark.slow
def test_a_limit_on_the_size_of_files_does_not_concern_memory_of_this_process_alone() -> None:
    told = run_limited(f"{FILE_LIMIT}\n    print(Arena(16, shared=False, budget=1 << 30).slot_bytes)", 1 << 20)
    assert int(told) > 1 << 30


@pytest.mark.slow
def test_without_room_for_a_page_per_slot_the_error_names_the_limit_on_files() -> None:
    told = run_limited(
        f"""{FILE_LIMIT}
    try:
        Arena(80, shared=True, budget=1 << 30)
    except TransportError as exc:
        print(exc)
    """,
        100_000,
    )
    assert "ulimit -f" in told
    assert "100000 bytes" in told
    assert "ulimit -v" not in told


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "size"), [(1 << 30, 1 << 30), (8 << 20, 8 << 20), (10_000, 8192)])
def test_a_file_is_as_long_as_the_limit_allows(limit: int, size: int) -> None:
    told = run_limited(
        f"""{FILE_LIMIT}
    from feedline.memory.sparse import map_file, why_no_more
    mapping, fd = map_file(64 << 30)
    mapping[len(mapping) - 1] = 1
    print(len(mapping), why_no_more(len(mapping), 64 << 30))
    """,
        limit,
    )
    assert told.startswith(f"{size} The limit on file size (`ulimit -f`)")


@pytest.mark.slow
@pytest.mark.parametrize("spare", [1 << 30, 100_000])
def test_a_file_within_the_limit_on_addresses_names_it(spare: int) -> None:
    told = run_limited(f"""
        from feedline.memory.sparse import map_file, why_no_more
        limit({spare})
        try:
            mapping, fd = map_file(64 << 30)
            print(len(mapping), why_no_more(len(mapping), 64 << 30))
        except TransportError as exc:
            print(0, exc)
    """)
    assert (spare > 1 << 20) == (int(told.split()[0]) >= 256 << 20)
    assert "ulimit -v" in told


# -- memory that is locked ---

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
    told = run_limited(
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
    if told.startswith("not allowed"):
        pytest.skip("needs the right to lock memory (CAP_IPC_LOCK, or ulimit -l)")
    size, locked, resident, value = map(int, told.split())
    assert size >= 512 << 20
    assert locked < 8 << 20
    assert resident < 8 << 20
    assert value == 0


@pytest.mark.slow
def test_a_file_in_locked_memory_is_not_filled() -> None:
    told = run_limited(
        f"""{LOCKED}
    from feedline.memory.sparse import map_file
    mapping, fd = map_file(1 << 30)
    print(len(mapping), status("VmLck") - before[0], status("VmRSS") - before[1])
    """,
        FUTURE,
    )
    if told.startswith("not allowed"):
        pytest.skip("needs the right to lock memory (CAP_IPC_LOCK, or ulimit -l)")
    size, locked, resident = map(int, told.split())
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
    # The system shows mappings that lie side by side as one: the arenas of other tests, for instance.
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
