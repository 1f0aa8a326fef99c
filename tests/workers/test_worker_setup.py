"""What every worker process does first, and with whom it ends."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import default
from feedline.frameworks.numpy import NumpyFramework
from feedline.types import DatasetKind, WorkerIdentity
from feedline.workers.worker_setup import end_with, init_worker

PATIENCE_S = 100.0


class Pipe:
    """What processes have to say, one JSON value per line; they hear a byte at a time."""

    def __init__(self) -> None:
        self._out = os.pipe()
        self._in = os.pipe()
        self._text = ""

    def say(self, value: Any) -> None:
        os.write(self._out[1], json.dumps(value).encode() + b"\n")

    def hear(self) -> None:
        os.read(self._in[0], 1)

    def line(self) -> Any:
        while "\n" not in self._text:
            assert select.select([self._out[0]], [], [], PATIENCE_S)[0], "nothing was said"
            self._text += os.read(self._out[0], 4096).decode()
        line, _, self._text = self._text.partition("\n")
        return json.loads(line)

    def tell(self) -> None:
        os.write(self._in[1], b".")

    def close(self) -> None:
        for fd in (*self._out, *self._in):
            os.close(fd)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def fork(work: Callable[[], object]) -> int:
    """Run `work` in another process; returns its number."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(9)
    return pid


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """Run `work` in another process, which is killed at the end if it is still there."""
    pid = fork(work)
    try:
        yield pid
    finally:
        end(pid)


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # the test has seen to its end
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def watching(pid: int) -> Iterator[Callable[[], bool]]:
    """Give a function that waits for the end of a process, whoever's child it is."""
    fd = os.pidfd_open(pid)
    try:
        yield lambda: bool(select.select([fd], [], [], PATIENCE_S)[0])
    finally:
        with contextlib.suppress(ProcessLookupError):  # it should have ended
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


# -- the end of the training process ---


def follow(pipe: Pipe, trainer_pid: int, *, by_main_thread: bool) -> None:
    """Be a worker that is stuck in the user's code, as soon as it has seen to its end."""
    end_with(trainer_pid, os.pidfd_open(trainer_pid), started_by_main_thread=by_main_thread)
    pipe.say({"worker": os.getpid(), "threads": [thread.name for thread in threading.enumerate()]})
    while True:
        pipe.hear()
        pipe.say("alive")


def starting(pipe: Pipe, *, by_main_thread: bool) -> Callable[[], None]:
    """Return what a training process does that starts a worker, from its main thread or from another."""

    def train() -> None:
        trainer_pid = os.getpid()

        def start() -> None:
            fork(lambda: follow(pipe, trainer_pid, by_main_thread=by_main_thread))

        if by_main_thread:
            start()
        else:
            starter = threading.Thread(target=start)
            starter.start()
            starter.join()
            pipe.say("the thread has ended")
        while True:
            signal.pause()

    return train


def test_a_worker_that_is_stuck_is_killed_with_the_process_that_started_it(pipe: Pipe) -> None:
    with forked(starting(pipe, by_main_thread=True)) as trainer:
        told = pipe.line()
        with watching(told["worker"]) as ends:
            assert told["threads"] == ["MainThread"], "the kernel sees to it"
            os.kill(trainer, signal.SIGKILL)
            assert ends()


def test_a_worker_outlives_the_thread_that_started_it_and_not_the_process(pipe: Pipe) -> None:
    with forked(starting(pipe, by_main_thread=False)) as trainer:
        said = [pipe.line(), pipe.line()]
        (told,) = (line for line in said if isinstance(line, dict))
        with watching(told["worker"]) as ends:
            assert "the thread has ended" in said
            assert "feedline-end" in told["threads"]
            pipe.tell()
            assert pipe.line() == "alive"
            os.kill(trainer, signal.SIGKILL)
            assert ends()


def test_a_worker_that_another_process_started_follows_the_training_process(pipe: Pipe) -> None:
    """As under forkserver: its parent is the server."""
    with (
        forked(signal.pause) as trainer,
        forked(lambda: follow(pipe, trainer, by_main_thread=True)) as worker,
    ):
        assert "feedline-end" in pipe.line()["threads"]
        with watching(worker) as ends:
            os.kill(trainer, signal.SIGKILL)
            assert ends()


def test_a_training_process_that_is_gone_already_is_noticed(pipe: Pipe) -> None:
    trainer = fork(signal.pause)
    fd = os.pidfd_open(trainer)
    end(trainer)

    def begin_late() -> None:
        end_with(trainer, fd, started_by_main_thread=True)
        signal.pause()

    worker = fork(begin_late)
    with watching(worker) as ends:
        assert ends()
    assert os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]) == -signal.SIGKILL
    os.close(fd)


# -- the beginning ---


class Asking(NumpyFramework):
    """Notes who the worker is."""

    worker: WorkerIdentity | None = None

    def open_worker(self, worker: WorkerIdentity, base_seed: int, shared_seed: int | None) -> Any:
        self.worker = worker
        return super().open_worker(worker, base_seed, shared_seed)


def settled(pipe: Pipe, number: int, generation: int) -> dict[str, Any]:
    """Become a worker in another process and tell what came of it."""

    def become() -> None:
        framework = Asking()
        spec = WorkerSpec([1, 2], DatasetKind.MAP, default, framework, worker_count=3, base_seed=100)
        init_worker(spec, number, generation)
        assert framework.worker is not None
        pipe.say(
            {
                "id": framework.worker.id,
                "seed": framework.worker.seed,
                "interrupt": int(signal.getsignal(signal.SIGINT)),  # type: ignore[arg-type]  # SIG_IGN is a number
                "termination": int(signal.getsignal(signal.SIGTERM)),  # type: ignore[arg-type]
            }
        )

    with forked(become):
        told: dict[str, Any] = pipe.line()
    return told


def test_a_worker_leaves_interrupts_to_the_training_loop(pipe: Pipe) -> None:
    told = settled(pipe, 1, 0)
    assert (told["id"], told["interrupt"], told["termination"]) == (1, int(signal.SIG_IGN), int(signal.SIG_DFL))


def test_no_two_workers_of_any_generation_draw_the_same_random_numbers(pipe: Pipe) -> None:
    seeds = [settled(pipe, number, generation)["seed"] for generation in range(3) for number in range(3)]
    assert seeds[:3] == [100, 101, 102], "torch's own seeds, for the workers that come first"
    assert len(set(seeds)) == 9
