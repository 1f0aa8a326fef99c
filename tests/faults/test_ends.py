"""However a loader or its program ends: its workers end, its memory is freed, and nothing is printed."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import signal
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

slow = pytest.mark.slow

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


@pytest.mark.parametrize("engine", ["process", pytest.param("portable", marks=slow)])
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


@pytest.mark.parametrize(
    ("kind", "engine", "persistent", "leave"),
    [
        ("Loader", "process", False, break_early),
        ("DataLoader", "process", True, raise_in_the_loop),
        ("Loader", "thread", True, drop_the_iterator),
        ("DataLoader", "thread", False, break_early),
    ],
)
def test_leaving_the_loop_frees_everything(
    kind: str, engine: str, persistent: bool, leave: Callable[[Any], None]
) -> None:
    """Workers, threads and descriptors are checked by the fixture of all tests."""
    before = mapped()
    loader = make(kind, Blocks(), 4, workers=2, engine=engine, persistent=persistent)
    leave(loader)
    assert mapped() <= before + 1
    del loader
    gc.collect()
    assert mapped() == before


# -- programs that end in the middle of an epoch ---

BEGIN = """
loader = Loader(Numbers(), 4, workers=2, engine=sys.argv[1], persistent=sys.argv[2] == "persistent")
batches = iter(loader)
batch = next(batches)
say(*worker_pids(), os.getpid())
"""

WAYS = [
    ("", 0, ""),
    pytest.param("sys.exit(7)", 7, "", marks=slow),
    pytest.param("raise RuntimeError('loss is not a number')", 1, "loss is not a number", marks=slow),
    ("for batch in batches: raise RuntimeError('in the loop')", 1, "in the loop"),
    pytest.param("loader.close(); batches.close()", 0, "", marks=slow),
    pytest.param("del batches, loader; assert len(batch) == 4", 0, "", marks=slow),
    ("class Holder: pass\nholder = Holder(); holder.me = holder; holder.it = batches; del holder", 0, ""),
    pytest.param("import atexit; atexit.register(lambda: say(len(list(batches))))", 0, "", marks=slow),
    pytest.param("import threading; threading.Thread(target=lambda: list(batches)).start()", 0, "", marks=slow),
    pytest.param("os._exit(4)", 4, "", marks=slow),
]
"""What a program does next; its exit code, and its error."""


@pytest.mark.parametrize(
    ("engine", "persistent"),
    [
        ("process", "not"),
        pytest.param("process", "persistent", marks=slow),
        pytest.param("thread", "persistent", marks=slow),
    ],
)
@pytest.mark.parametrize(("leave", "code", "message"), WAYS)
def test_no_process_is_left_and_nothing_is_printed(
    leave: str, code: int, message: str, engine: str, persistent: str
) -> None:
    with running(BEGIN + leave, engine, persistent, finalizes=True) as program:
        program.watch(program.line())
        assert program.end() == code, program.errors()
        assert program.watched_are_gone()
        errors = program.errors()
    assert message in errors
    assert errors.count("Traceback (most recent call last)") == bool(message), errors
    assert bool(errors) == bool(message)


STUCK = """
import threading

def wait():
    threading.Event().wait()

def read():
    os.read(nothing[0], 1)

def loop():
    while True:
        pass

def deaf():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Event().wait()

class Stuck(Numbers):
    def __init__(self, way):
        super().__init__()
        self.way = way
    def __getitem__(self, index):
        if index >= 4:
            os.write(reached[1], b".")
            self.way()
        return super().__getitem__(index)

nothing, reached = os.pipe(), os.pipe()
others = set(worker_pids())  # multiprocessing's own
for way in wait, read, loop, deaf:
    loader = Loader(Stuck(way), 4, workers=2, persistent=True)
    batches = iter(loader)
    next(batches)
    for _ in range(2):
        os.read(reached[0], 1)
    pids = set(worker_pids()) - others
    assert len(pids) == 2
    if sys.argv[1] == "close":
        loader.close()
    else:
        del loader, batches
    say(way.__name__, "left" if pids & set(worker_pids()) else "gone")
batches = iter(Loader(Stuck(wait), 4, workers=2, engine="thread"))
next(batches)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["close", "delete"])
def test_workers_end_whatever_they_are_stuck_in(way: str) -> None:
    with running(STUCK, way, finalizes=True) as program:
        for name in ("wait", "read", "loop", "deaf"):
            assert program.line() == f"{name} gone"
        assert program.end() == 0, "stuck threads do not keep it alive"
        assert program.errors() == ""


CHILDREN_IGNORED = """
import gc
signal.signal(signal.SIGCHLD, signal.SIG_IGN)

def make(**options):
    if sys.argv[1] == "DataLoader":
        options = {{"workers": "num_workers"}.get(name, name): value for name, value in options.items()}
        return feedline.DataLoader(Numbers(), 4, **options)
    return Loader(Numbers(), 4, **options)

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


@pytest.mark.parametrize("kind", [LOADERS[0], pytest.param(LOADERS[1], marks=slow)])
def test_workers_end_in_a_program_that_ignores_sigchld(kind: str) -> None:
    """The system then keeps no exit statuses, and multiprocessing would consider such workers alive forever."""
    with running(CHILDREN_IGNORED, kind) as program:
        assert program.line() == "left 0", program.errors()
        assert "ignores SIGCHLD" in program.line()
        assert program.end() == 0, program.errors()


# -- Ctrl-C, which reaches the trainer and all its workers at once ---

IN_THE_LOOP = """
batches = iter(Loader(Numbers(1_000_000), 4, workers=2, engine=sys.argv[1]))
next(batches)
say(*worker_pids(), os.getpid())
for batch in batches:
    pass
"""

IN_THE_STEP = """
batches = iter(Loader(Numbers(), 4, workers=2, engine=sys.argv[1], persistent=True))
for batch in batches:
    say(*worker_pids(), os.getpid())
    hear()
"""


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        (IN_THE_LOOP, "process"),
        (IN_THE_STEP, "thread"),
        pytest.param(IN_THE_STEP, "process", marks=slow),
        pytest.param(IN_THE_LOOP, "thread", marks=slow),
    ],
)
def test_ctrl_c_prints_one_traceback_and_leaves_no_process(text: str, engine: str) -> None:
    with running(text, engine, finalizes=True) as program:
        program.watch(program.line())
        os.killpg(program.pid, signal.SIGINT)
        assert program.end() == -signal.SIGINT, "ended by the interrupt, as usual in Python"
        assert program.watched_are_gone()
        errors = program.errors()
    assert errors.count("Traceback (most recent call last)") == 1, errors
    assert errors.rstrip().endswith("KeyboardInterrupt"), errors


OWN_HANDLER = """
received = []
handler = signal.SIG_IGN if sys.argv[2] == "ignored" else lambda number, frame: received.append(number)
signal.signal(signal.SIGINT, handler)
loader = Loader(list(np.arange(64)), 4, workers=2, engine=sys.argv[1], start_method=sys.argv[3] or None)
for epoch in range(2):
    for number, batch in enumerate(loader):
        if number == 4:
            say("in the loop")
            hear()
    assert number == 15 and signal.getsignal(signal.SIGINT) is handler
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
say(len(received))
"""


@pytest.mark.parametrize(
    ("engine", "method", "handling"),
    [
        ("process", "fork", "handled"),
        ("thread", "", "ignored"),
        pytest.param("process", "forkserver", "ignored", marks=slow),
    ],
)
def test_a_program_that_ignores_or_handles_ctrl_c_keeps_doing_so(engine: str, method: str, handling: str) -> None:
    with running(OWN_HANDLER, engine, handling, method, finalizes=True) as program:
        for _ in range(2):
            assert program.line() == "in the loop"
            os.killpg(program.pid, signal.SIGINT)
            program.go_on()
        assert program.line() == ("2" if handling == "handled" else "0")
        assert program.end() == 0
        assert not program.errors()
