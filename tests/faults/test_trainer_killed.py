"""kill -9 of the training process: its workers notice, and nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from feedline.testing import Gate
from tests.faults.programs import running, shared_memory_names

IN_THE_MIDDLE = """
from feedline.testing.engine import Numbers  # under a name that a worker can import
batches = iter(Loader(Numbers(), 4, workers=2, start_method=sys.argv[1]))
next(batches)
say(*batches.crew.engine.pids)
hear()
"""


@pytest.mark.parametrize("start_method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_idle_workers_go(start_method: str) -> None:
    before = shared_memory_names()
    with running(IN_THE_MIDDLE, start_method) as program:
        program.watch(program.line())
        program.kill()
        assert program.end() == -signal.SIGKILL
        assert program.watched_are_gone()
    assert {name for name in shared_memory_names() - before if "feedline" in name} == set()


BUSY = """
from feedline.testing import Gate

class Held(Numbers):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate
    def __getitem__(self, index):
        if index >= 4:
            self.gate.pass_through()
        return super().__getitem__(index)

gate = Gate.at(sys.argv[1])
batches = iter(Loader(Held(gate), 1, workers=2))
for _ in range(4):
    next(batches)
say(*batches.crew.engine.pids)
hear()
"""


def test_busy_workers_go_when_their_task_is_done(tmp_path: Path) -> None:
    with Gate(tmp_path / "gate") as gate, running(BUSY, tmp_path / "gate") as program:
        program.watch(program.line())
        gate.wait_until_reached(2)
        program.kill()
        program.end()
        gate.open(2)
        assert program.watched_are_gone()


WITH_ANOTHER_CHILD = """
batches = iter(Loader(Numbers(), 4, workers=2))
next(batches)
pids = batches.crew.engine.pids
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


def test_workers_go_although_another_child_of_the_trainer_keeps_their_sockets_open() -> None:
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


FULL_SOCKET = """
def long_header(samples):
    return ["x" * 30_000]

batches = iter(Loader(Numbers(6400), 1, workers=1, prefetch=64, collate=long_header))
next(batches)
pids = batches.crew.engine.pids
if os.fork() == 0:
    os.setsid()
    os.read(int(sys.argv[1]), 1)
    os._exit(0)
# The worker has more to say than a socket holds: it waits in the middle of an answer.
while open(f"/proc/{pids[0]}/stat").read().split()[2] != "S":
    pass
say(*pids)
hear()
"""


def test_a_worker_that_waits_in_the_middle_of_an_answer_goes() -> None:
    read, write = os.pipe()
    try:
        with running(FULL_SOCKET, read, keep_open=read) as program:
            program.watch(program.line())
            program.kill()
            assert program.watched_are_gone()
            os.write(write, b".")
    finally:
        os.close(read)
        os.close(write)
