"""The arena as a worker sees it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from feedline.memory.arena import Arena
from feedline.memory.reading import SMALL_BYTES
from feedline.workers.processes.arena_view import ArenaView


def test_after_part_with_new_writes_reach_the_slot_and_kept_arrays_stay() -> None:
    arena = Arena(3, shared=True, budget=1 << 20)
    view = ArenaView(arena)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            kept = []
            for number in range(1, 4):
                buffer = view.writer(1)
                memory, offset = buffer.allocate(5000) or (None, 0)
                array = np.ndarray(5000, np.uint8, memory, offset)
                array[:] = number
                view.part_with(1, buffer.address, buffer.used)
                buffer = view.writer(1)
                buffer.view[:5000] = 10 * number
                kept.append(array)
            code = 0 if [int(array[0]) for array in kept] == [1, 2, 3] and kept[0].max() == 1 else 2
            os.write(write, b".")
        finally:
            os._exit(code)
    os.close(write)
    assert os.read(read, 1) == b"."
    os.close(read)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert set(arena.view(1, 5000).tolist()) == {30}
    assert not arena.view(0, 5000).any()
    assert not arena.view(2, 5000).any()


def test_a_view_of_a_closed_arena_is_sent_without_its_descriptor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arena = Arena(2, shared=True, budget=1 << 20)
    view, fd = ArenaView(arena), arena.fd
    arena.close()
    assert arena.acquire() == -1, "no task of a worker that starts now has a slot"
    sent: list[int] = []
    starting = SimpleNamespace(duplicate_for_child=sent.append, DupFd=lambda fd: fd)
    monkeypatch.setattr(multiprocessing.context, "get_spawning_popen", lambda: starting)
    with open(tmp_path / "other", "wb") as other:
        assert other.fileno() == fd, "another file has the number now"
        copy = pickle.loads(ForkingPickler.dumps(view))
    assert sent == []
    assert copy.writer(-1).place(SMALL_BYTES) == 0
