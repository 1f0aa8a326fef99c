"""A worker that is killed, crashes or leaves: an error that says so, and nothing left of the others."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline import Loader
from feedline.errors import WorkerDied
from feedline.testing import Gate

WAYS: dict[str, tuple[Callable[[], None], str]] = {
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), "SIGKILL"),
    "crashed": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
    "left": (lambda: os._exit(3), "exit code 3"),
}


class Deadly:
    """The worker that gets to sample `fatal` ends there."""

    def __init__(self, way: str, fatal: int | None = 20) -> None:
        self.way = way
        self.fatal = fatal

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if index == self.fatal:
            faulthandler.disable()
            WAYS[self.way][0]()
        return index


class DeadlyStream(Deadly):
    __getitem__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[int]:
        return (Deadly.__getitem__(self, index) for index in range(64))


class OnlyStream:
    """An iterable dataset, and nothing else."""

    def __init__(self, way: str) -> None:
        self.stream = DeadlyStream(way)

    def __iter__(self) -> Iterator[int]:
        return iter(self.stream)


def are_gone(pids: list[int]) -> bool:
    for pid in pids:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        return False
    return True


def engine_of(batches: Any) -> Any:
    return batches.crew.engine


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dataset", [Deadly, OnlyStream])
@pytest.mark.parametrize("in_order", [True, False])
def test_the_error_names_the_process_and_the_cause(way: str, dataset: type, in_order: bool) -> None:
    loader = Loader(dataset(way), 4, workers=2, in_order=in_order)
    batches = iter(loader)
    pids = list(engine_of(batches).pids)
    with pytest.raises(RuntimeError, match="exited unexpectedly") as caught:
        list(batches)
    assert type(caught.value) is WorkerDied
    named = re.search(r"pid\(s\) (\d+)", str(caught.value))
    assert named is not None
    assert int(named[1]) in pids
    assert WAYS[way][1] in str(caught.value)
    assert are_gone(pids)
    with pytest.raises(WorkerDied):
        next(batches)


def test_batches_from_before_stay_valid_and_the_loader_can_be_used_again() -> None:
    dataset = Deadly("killed")
    loader = Loader(dataset, 4, workers=2)
    batches: list[Any] = []
    with pytest.raises(WorkerDied):
        batches.extend(loader)
    kept = [batch.tolist() for batch in batches]
    dataset.fatal = None
    assert len(list(loader)) == 16
    assert kept == [[4 * place, 4 * place + 1, 4 * place + 2, 4 * place + 3] for place in range(len(kept))]


def test_deaths_use_up_no_memory() -> None:
    """Slots of batches that had arrived when a worker died come back."""
    loader = Loader(Deadly("left", fatal=30), 1, workers=2, in_order=False, prefetch=4)
    for _ in range(5):
        with pytest.raises(WorkerDied):
            list(loader)
    arena: Any = loader._supply.arena()
    free = 0
    while arena.acquire() >= 0:
        free += 1
    assert free == arena.slot_count


@pytest.mark.parametrize("in_order", [True, False])
def test_a_worker_killed_from_outside_while_it_works(tmp_path: Path, in_order: bool) -> None:
    class Held:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            gate.pass_through()
            return index

    with Gate(tmp_path / "gate") as gate:
        batches = iter(Loader(Held(), 1, workers=2, in_order=in_order))
        gate.wait_until_reached(2)
        pids = list(engine_of(batches).pids)
        os.kill(pids[0], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=rf"{pids[0]}.*worker 0 was killed by signal 9"):
            next(batches)
        assert are_gone(pids)


def test_a_persistent_worker_killed_between_epochs() -> None:
    loader = Loader(Deadly("left", fatal=None), 4, workers=2, persistent=True)
    batches: Any = iter(loader)
    assert len(list(batches)) == 16
    pids = list(engine_of(batches).pids)
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(WorkerDied, match=str(pids[1])):
        list(loader)
    assert are_gone(pids)
    assert len(list(loader)) == 16, "with workers of its own"
    loader.close()


def test_a_worker_that_dies_while_it_starts() -> None:
    with pytest.raises(WorkerDied, match="exit code 5"):
        list(Loader(np.arange(10), 2, workers=2, worker_init=lambda _: os._exit(5)))
