"""Reserving far more addresses than memory, as far as the system allows."""

from __future__ import annotations

import os

import pytest

from feedline.memory.sparse import map_again, map_file
from tests import program_server
from tests.mappings import of_feedline

UNDER_A_LIMIT = """
import resource, sys
from feedline.memory.arena import Arena

kind, limit, shared = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "shared"
if kind == "RLIMIT_AS":
    limit += int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(getattr(resource, kind), (limit, limit))
arena = Arena(16, shared=shared, budget=1 << 30)
for _ in range(3):
    lease = arena.lease(arena.acquire(), 0, arena.slot_bytes)
    lease[:] = 5
arena.view(15)[-1] = 7
print(arena.slot_bytes)
"""


@pytest.mark.parametrize(
    ("kind", "limit", "memory"),
    [
        ("RLIMIT_AS", 1 << 30, "shared"),
        ("RLIMIT_AS", 1 << 30, "private"),
        ("RLIMIT_FSIZE", 8 << 20, "shared"),
        ("RLIMIT_FSIZE", 999_999, "shared"),
    ],
)
def test_slots_are_smaller_under_a_limit_on_addresses_or_file_size(kind: str, limit: int, memory: str) -> None:
    done = program_server.run(UNDER_A_LIMIT, kind, limit, memory)
    assert done.returncode == 0, done.stderr
    assert limit // 8 < 16 * int(done.stdout) <= limit


@pytest.mark.parametrize("private", [True, False])
def test_files_are_left_out_of_core_dumps_wherever_they_are_mapped(private: bool) -> None:
    before = of_feedline(os.getpid())
    mapping, fd = map_file(4 << 20)
    again = map_again(fd, 1 << 20, offset=2 << 20, private=private)
    found = [entry for entry in of_feedline(os.getpid()) if entry not in before]
    assert sorted(entry.size for entry in found) == [1 << 20, 4 << 20]
    assert all("dd" in entry.flags for entry in found)
    os.close(fd)
    del mapping, again
