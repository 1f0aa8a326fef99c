"""However a loader ends: its workers end soon, its memory is freed, and nothing is printed.

`test_leaving.py` and `test_interrupted.py` have the plain cases. Here: both loaders, finalizers, stuck workers,
and programs that ignore SIGCHLD.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import threading
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline.workers import abilities, lifetime
from tests.faults.loaders import LOADERS, make
from tests.faults.programs import running

pytestmark = pytest.mark.sample(13)

# -- in the same process ---


class Flushes:
    """Sample 0 is quick, others never end; a `finally` block and a finalizer write files, the latter slowly."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reached = multiprocessing.get_context("fork").Semaphore(0)

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        util.Finalize(None, self.flush, exitpriority=10)
        try:
            if index >= 4:
                self.reached.release()
                threading.Event().wait()
        finally:
            if index >= 4:
                (self.folder / f"left {os.getpid()}").touch()
        return np.full(4, index)

    def flush(self) -> None:
        with open(self.folder / f"flushed {os.getpid()}", "w") as file:
            for _ in range(10_000):
                file.write("x")
                file.flush()


@pytest.mark.parametrize("engine", ["process", "portable"])
def test_finalizers_in_workers_run_to_their_end(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(abilities, "can_share_arenas", lambda: engine == "process")
    dataset = Flushes(tmp_path)
    loader = feedline.Loader(dataset, 2, workers=2, start_method="fork")
    batches = iter(loader)
    next(batches)
    next(batches)
    for _ in range(2):
        assert dataset.reached.acquire(timeout=100)
    loader.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.split()[0] for name in names] == ["flushed", "flushed", "left", "left"]
    assert all(path.stat().st_size == 10_000 for path in tmp_path.glob("flushed*"))


class Blocks:
    """Sample i is 100 kB full of i."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        return np.full(100_000, index, np.uint8)


def mapped() -> int:
    """Return how many of feedline's shared memory mappings this process has."""
    return Path("/proc/self/maps").read_text().count("memfd:feedline")


def break_early(loader: Any) -> None:
    for place, _ in enumerate(loader):
        if place == 3:
            break


def raise_in_the_loop(loader: Any) -> None:
    with contextlib.suppress(ZeroDivisionError):
        for _ in loader:
            raise ZeroDivisionError


def drop_the_iterator(loader: Any) -> None:
    next(iter(loader))


WAYS: list[Callable[[Any], None]] = [
    break_early,
    raise_in_the_loop,
    drop_the_iterator,
]


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("engine", ["process", "thread"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_leaving_the_loop_frees_everything(
    kind: str, engine: str, persistent: bool, way: Callable[[Any], None]
) -> None:
    """Workers, threads and descriptors are checked by the fixture of all tests."""
    before = mapped()
    loader = make(kind, Blocks(), 4, workers=2, engine=engine, persistent=persistent)
    way(loader)
    assert mapped() <= before + 1
    del loader
    gc.collect()
    assert mapped() == before


# -- stuck workers ---

STUCK_SAMPLES = """
import threading

def stuck_in_wait():
    threading.Event().wait()

def stuck_in_read():
    os.read(nothing[0], 1)

def stuck_in_a_loop():
    while True:
        pass

def stuck_and_deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()

nothing = os.pipe()

class Stuck(Numbers):
    def __init__(self, way):
        super().__init__()
        self.way = way
    def __getitem__(self, index):
        if index >= 4 and self.way:
            os.write(reached[1], b".")
            self.way()
        return super().__getitem__(index)

reached = os.pipe()
"""

STUCK = """
others = set(worker_pids())  # multiprocessing's own
for way in None, stuck_in_wait, stuck_in_read, stuck_in_a_loop, stuck_and_deaf:
    loader = Loader(Stuck(way), 4, workers=2, persistent=True)
    batches = iter(loader)
    next(batches)
    if way:
        for _ in range(2):
            os.read(reached[0], 1)
    pids = set(worker_pids()) - others
    assert len(pids) == 2
    if sys.argv[1] == "close":
        loader.close()
    else:
        del loader, batches
    say(way and way.__name__, "left" if pids & set(worker_pids()) else "gone")
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["close", "delete"])
def test_workers_end_whatever_they_are_stuck_in(way: str) -> None:
    with running(STUCK_SAMPLES + STUCK, way) as program:
        for name in ("None", "stuck_in_wait", "stuck_in_read", "stuck_in_a_loop", "stuck_and_deaf"):
            assert program.line() == f"{name} gone"
        assert program.end() == 0
        assert program.errors() == ""


# -- programs that ignore SIGCHLD ---

CHILDREN_IGNORED = """
import gc
signal.signal(signal.SIGCHLD, signal.SIG_IGN)

def make(**options):
    if sys.argv[1] == "DataLoader":
        options = {{"workers": "num_workers"}.get(name, name): value for name, value in options.items()}
        return feedline.DataLoader(Numbers(), 4, **options, multiprocessing_context=sys.argv[2])
    return Loader(Numbers(), 4, start_method=sys.argv[2], **options)

def files():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))

list(make(workers=2))
before = files()
for _ in range(2):
    assert len(list(make(workers=2))) == 16
say("left", files() - before)
batches = iter(make(workers=1, restarts=0))
next(batches)
pid = batches.worker_pids[0]
os.kill(pid, signal.SIGKILL)
try:
    list(batches)
except feedline.errors.WorkerDied as exc:
    say(exc)
"""


@pytest.mark.parametrize("kind", LOADERS)
def test_workers_end_in_a_program_that_ignores_sigchld(kind: str) -> None:
    """The system then keeps no exit statuses, and multiprocessing would consider such workers alive forever."""
    with running(CHILDREN_IGNORED, kind, "fork") as program:
        assert program.line() == "left 0", program.errors()
        message = program.line()
        assert "ended with an unknown exit status" in message
        assert "ignores SIGCHLD" in message
        assert program.end() == 0, program.errors()
