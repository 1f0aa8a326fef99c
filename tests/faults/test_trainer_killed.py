"""After kill -9 of the training process its workers end, and nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.contracts.gate import Gate
from tests.faults.programs import running

STUCK = """
import threading
from tests.contracts.gate import Gate
from tests.contracts.engine import Numbers  # under a name that a worker can import

def train():
    held = Numbers(gate=Gate.at(sys.argv[3]), held=tuple(range(4, 64)))
    batches = iter(Loader(held, 1, workers=2, start_method=sys.argv[1]))
    for _ in range(4):
        next(batches)
    say(*batches.worker_pids)
    hear()

if sys.argv[2] == "main":
    train()
else:
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(
    ("start_method", "thread"),
    [
        ("fork", "another"),
        pytest.param("forkserver", "main", marks=pytest.mark.slow),
        pytest.param("spawn", "another", marks=pytest.mark.slow),
    ],
)
def test_stuck_workers_end_at_once(start_method: str, thread: str, tmp_path: Path) -> None:
    """The gate that they wait at is never opened."""
    with Gate(tmp_path / "gate") as gate, running(STUCK, start_method, thread, tmp_path / "gate") as program:
        program.watch(program.line())
        gate.wait_until_reached(2)
        program.kill()
        assert program.end() == -signal.SIGKILL
        assert program.watched_are_gone()


PORTABLE = """
from feedline.workers import abilities

abilities.can_share_arenas = lambda: False
batches = iter(Loader(Numbers(), 4, workers=2, start_method="fork"))
next(batches)
say(*batches.worker_pids)
hear()
"""


def test_workers_with_portable_means_end_too() -> None:
    with running(PORTABLE) as program:
        program.watch(program.line())
        program.kill()
        assert program.watched_are_gone()


IN_ANOTHER_THREAD = """
import threading
from tests.contracts.gate import Gate

class Held(Numbers):
    def __getitem__(self, index):
        if index >= 4:
            Gate.at(sys.argv[1]).pass_through()
        return super().__getitem__(index)

def begin():
    global loader, batches
    loader = Loader(Held(16), 1, workers=2)
    batches = iter(loader)
    next(batches)

thread = threading.Thread(target=begin)
thread.start()
thread.join()  # and the thread that started the workers is gone
say(*batches.worker_pids)
numbers = [int(batch[0, 0]) for batch in batches]
say(*numbers)
say(loader.stats()["restarted_workers"])
"""


def test_workers_outlive_the_thread_that_started_them(tmp_path: Path) -> None:
    with Gate(tmp_path / "gate") as gate, running(IN_ANOTHER_THREAD, tmp_path / "gate") as program:
        program.watch(program.line())
        gate.wait_until_reached(2)
        gate.open(12)
        assert program.line().split() == [str(number) for number in range(1, 16)]
        assert program.line() == "0"


IN_C = """
import ctypes, threading

class InC(Numbers):
    def __getitem__(self, index):
        if index >= 4:
            say("stuck", os.getpid())
            ctypes.PyDLL(None).pause()  # without giving up the interpreter's lock
        return super().__getitem__(index)

batches = iter(Loader(InC(), 1, workers=1))
for _ in range(4):
    next(batches)
hear()
"""


def test_a_worker_that_holds_the_gil_ends_at_once() -> None:
    with running(IN_C) as program:
        program.watch(program.line().split()[1])
        program.kill()
        assert program.watched_are_gone()


WITH_ANOTHER_CHILD = """
batches = iter(Loader(Numbers(), 4, workers=2))
next(batches)
pids = batches.worker_pids
read, write = os.pipe()
if os.fork() == 0:
    os.close(write)
    say("child", os.getpid())
    os.setsid()
    os.read(int(sys.argv[1]), 1)  # holds a copy of every socket, and outlives the trainer
    os._exit(0)
os.close(read)
say(*pids)
hear()
"""


def test_workers_end_even_if_another_child_of_the_trainer_keeps_their_sockets_open() -> None:
    read, write = os.pipe()
    try:
        with running(WITH_ANOTHER_CHILD, read, keep_open=read) as program:
            lines = sorted([program.line(), program.line()])  # numbers sort before words
            program.watch(lines[0])
            program.kill()
            assert program.watched_are_gone()
            os.write(write, b".")
            program.watch(lines[1].split()[1])
            assert program.watched_are_gone()
    finally:
        os.close(read)
        os.close(write)
