"""Memory that forked processes can see is held exactly as long as they can see it."""

from __future__ import annotations

import os
import textwrap

import pytest

from feedline.memory import forks
from feedline.memory.arena import Arena
from feedline.memory.codec import Bytes
from tests import program_server
from tests.faults.limits import descriptors_left


def make_arena() -> Arena:
    return Arena(8, shared=True, budget=1 << 30)


def leased(arena: Arena, value: int = 7) -> Bytes:
    slot = arena.acquire()
    lease = arena.lease(slot, 0, 100)
    arena.finish(slot)
    lease[:] = value
    return lease


def test_what_a_child_sees_is_held_until_it_ends_and_does_not_change() -> None:
    arena = make_arena()
    lease = leased(arena)
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(read_end, 0)
        os.closerange(3, 256)  # a child that closes every descriptor still counts
        os.read(0, 1)  # the parent has dropped its view and overwritten every slot it could acquire
        os._exit(0 if set(lease.tolist()) == {7} else 1)
    try:
        del lease
        forks.release_ended(at_once=True)
        assert arena.leased_count == 1
        while (slot := arena.acquire()) >= 0:
            arena.view(slot, 100)[:] = 9
            assert slot != 0
    finally:
        os.write(write_end, b".")
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(read_end)
        os.close(write_end)
    assert code == 0, "the child saw its batch change"
    forks.release_ended(at_once=True)
    assert arena.leased_count == 0
    assert forks.SEEN == []


def test_without_a_descriptor_what_a_child_sees_is_held_for_good() -> None:
    arena = make_arena()
    lease = leased(arena)
    with descriptors_left(0):
        pid = os.fork()
        if pid == 0:
            os._exit(0)
    os.waitpid(pid, 0)
    del lease
    forks.release_ended(at_once=True)
    assert arena.leased_count == 1
    forks.SEEN.clear()
    assert arena.leased_count == 0


def test_forking_while_a_batch_is_held_leaks_no_memory() -> None:
    pytest.importorskip("torch")
    program = textwrap.dedent("""
        import os, torch
        from feedline import DataLoader
        class Images(torch.utils.data.Dataset):
            def __len__(self): return 64
            def __getitem__(self, index): return torch.full((1 << 20,), float(index))
        loader = DataLoader(Images(), 4, num_workers=1, prefetch_factor=1)
        seen = []
        for batch in loader:
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            seen.append(batch[:, 0].tolist())
        assert sum(seen, []) == list(map(float, range(64)))
        print(loader.stats()["arena_bytes"] >> 20)
    """)
    done = program_server.run(program)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) <= 7 * 16, "batches of 16 MB: one window, not one for every fork"
