"""The arena as a worker sees it."""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import SimpleNamespace

import pytest

from feedline.memory.arena import Arena
from feedline.memory.codec import SMALL_BYTES
from feedline.types import Task
from feedline.workers.processes.link import ArenaView


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
    assert copy.writer(Task(0, [0])).write_anew(bytes(SMALL_BYTES)) == 0
