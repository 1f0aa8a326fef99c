"""Far more addresses than memory, as far as the system grants them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from feedline.transport.sparse import create_memfd

UNDER_A_LIMIT = """
import resource, sys
import numpy as np
from feedline.errors import TransportError
from feedline.transport.arena import Arena

def limit(spare):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + spare, used + spare))
"""


def run_limited(program: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_LIMIT + textwrap.dedent(program)], capture_output=True, text=True, timeout=60
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
