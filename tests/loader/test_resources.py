"""Workers, memory and measurements of a loader."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest

from feedline import DataLoader
from feedline.faults.log import FaultLog
from feedline.loader.resources import Resources
from feedline.memory.arena import Arena
from feedline.workers import abilities
from tests.holding import Hold, Whereabouts
from tests.loader.beginnings import resources_with


def make(**options: Any) -> Resources:
    return resources_with(**{"worker_count": 2, "memory_budget": 1 << 20, **options})


def arena_of(resources: Resources) -> Arena:
    arena = resources.arena()
    assert arena is not None
    return arena


@pytest.mark.parametrize(
    ("options", "moves"),
    [
        ({"worker_count": 0}, False),
        ({"worker_count": 0, "seed": 1}, True),
        ({}, False),
        ({"seed": 1}, True),
        ({"engine": "thread"}, True),
    ],
)
def test_stats_say_whether_work_can_move_before_workers_start(options: dict[str, Any], moves: bool) -> None:
    assert make(**options).stats(1, None, FaultLog()).settings["moves"] is moves


@pytest.mark.parametrize(("engine", "shared"), [("process", True), ("thread", False)])
def test_the_arena_is_created_once_and_fits_the_engine(engine: str, shared: bool) -> None:
    resources = make(engine=engine)
    arena = arena_of(resources)
    assert arena.shared is shared
    assert arena.budget == 1 << 20
    assert arena_of(resources) is arena


def test_the_slot_count_exceeds_the_window_and_is_bounded() -> None:
    assert arena_of(make()).slot_count > 4
    assert arena_of(make(worker_count=64, depth=64)).slot_count <= 1024


def test_a_forked_process_gets_its_own_arena() -> None:
    resources = make()
    arena = arena_of(resources)
    child = os.fork()
    if child == 0:
        os._exit(0 if arena_of(resources) is not arena and arena_of(resources).pid == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert arena_of(resources) is arena


def test_closing_frees_the_arena_and_batches_stay_valid() -> None:
    before = len(os.listdir("/proc/self/fd"))
    resources = make()
    arena = arena_of(resources)
    slot = arena.acquire()
    lease = arena.lease(slot, 0, 4)
    lease[:] = 2
    arena.finish(slot)
    del arena
    resources.close(is_used=True)
    resources.close(is_used=False)
    resources.close(is_used=False)
    assert lease.tolist() == [2, 2, 2, 2]
    del lease
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
    assert arena_of(resources).acquire() == 0, "they can be used again"


# -- which worker makes which batch ---

COUNT = 12


def makers(hold: Hold, workers: int, **options: Any) -> list[int]:
    """Return which worker made each batch while the second batch of worker 0 was held."""
    dataset = Whereabouts(hold.gate, COUNT, held=workers)
    batches = DataLoader(dataset, batch_size=None, num_workers=workers, **options)
    where = [int(one) for one in batches]
    return [where.index(one) for one in where]


@pytest.fixture
def hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hold:
    return Hold(tmp_path, monkeypatch)


@pytest.mark.parametrize(("engine", "workers"), [("process", 3), ("portable", 2)])
def test_worker_i_makes_batch_i_mod_n(hold: Hold, engine: str, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if engine == "portable":
        monkeypatch.setattr(abilities, "can_share_arenas", lambda: False)
    assert makers(hold, workers, engine="process") == [place % workers for place in range(COUNT)]
    assert hold.moved == 0


@pytest.mark.parametrize("options", [{"engine": "process", "seed": 1}, {"engine": "thread"}])
def test_an_idle_worker_takes_over_work_of_a_late_one(hold: Hold, options: dict[str, Any]) -> None:
    made = makers(hold, 2, **options)
    assert hold.moved > 0  # work may move back when the other worker is late
    assert len(made) == COUNT
