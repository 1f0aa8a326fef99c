"""How worker processes set themselves up, and that they end with the training process."""

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
    """Processes send one JSON value per line, and receive single bytes."""

    def __init__(self) -> None:
        self._out = os.pipe()
        self._in = os.pipe()
        self._text = ""

    def send(self, value: Any) -> None:
        os.write(self._out[1], json.dumps(value).encode() + b"\n")

    def wait_for_byte(self) -> None:
        os.read(self._in[0], 1)

    def line(self) -> Any:
        while "\n" not in self._text:
            assert select.select([self._out[0]], [], [], PATIENCE_S)[0], "nothing was sent"
            self._text += os.read(self._out[0], 4096).decode()
        line, _, self._text = self._text.partition("\n")
        return json.loads(line)

    def send_byte(self) -> None:
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
    """Run `work` in another process; returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(9)
    return pid


@contextmanager
def forked(work: Callable[[], object]) -> Iterator[int]:
    """Run `work` in another process, and kill it at the end if it still runs."""
    pid = fork(work)
    try:
        yield pid
    finally:
        end(pid)


def end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # it may have ended already
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@contextmanager
def watching(pid: int) -> Iterator[Callable[[], bool]]:
    """Yield a function that waits for the end of a process, which need not be a child."""
    fd = os.pidfd_open(pid)
    try:
        yield lambda: bool(select.select([fd], [], [], PATIENCE_S)[0])
    finally:
        with contextlib.suppress(ProcessLookupError):  # it should have ended
            signal.pidfd_send_signal(fd, signal.SIGKILL)
        os.close(fd)


# -- the end of the training process ---


def follow(pipe: Pipe, trainer_pid: int, *, by_main_thread: bool) -> None:
    """Call `end_with`, then act as a worker that is stuck in the user's code."""
    end_with(trainer_pid, os.pidfd_open(trainer_pid), started_by_main_thread=by_main_thread)
    pipe.send({"worker": os.getpid(), "threads": [thread.name for thread in threading.enumerate()]})
    while True:
        pipe.wait_for_byte()
        pipe.send("alive")


def starting(pipe: Pipe, *, by_main_thread: bool) -> Callable[[], None]:
    """Return the work of a training process that starts a worker, from its main thread or from another."""

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
            pipe.send("the thread has ended")
        while True:
            signal.pause()

    return train


def test_a_stuck_worker_is_killed_with_the_process_that_started_it(pipe: Pipe) -> None:
    with forked(starting(pipe, by_main_thread=True)) as trainer:
        reply = pipe.line()
        with watching(reply["worker"]) as ends:
            assert reply["threads"] == ["MainThread"], "the kernel kills it, without a thread"
            os.kill(trainer, signal.SIGKILL)
            assert ends()


def test_a_worker_outlives_the_thread_that_started_it_but_not_the_process(pipe: Pipe) -> None:
    with forked(starting(pipe, by_main_thread=False)) as trainer:
        lines = [pipe.line(), pipe.line()]
        (reply,) = (line for line in lines if isinstance(line, dict))
        with watching(reply["worker"]) as ends:
            assert "the thread has ended" in lines
            assert "feedline-end" in reply["threads"]
            pipe.send_byte()
            assert pipe.line() == "alive"
            os.kill(trainer, signal.SIGKILL)
            assert ends()


def test_a_worker_started_by_another_process_ends_with_the_training_process(pipe: Pipe) -> None:
    """As under forkserver: its parent is the server."""
    with (
        forked(signal.pause) as trainer,
        forked(lambda: follow(pipe, trainer, by_main_thread=True)) as worker,
    ):
        assert "feedline-end" in pipe.line()["threads"]
        with watching(worker) as ends:
            os.kill(trainer, signal.SIGKILL)
            assert ends()


def test_a_worker_ends_if_the_training_process_is_already_gone(pipe: Pipe) -> None:
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


# -- the start ---


class RecordsWorker(NumpyFramework):
    """Records the worker."""

    worker: WorkerIdentity | None = None

    def open_worker(self, worker: WorkerIdentity, base_seed: int, shared_seed: int | None) -> Any:
        self.worker = worker
        return super().open_worker(worker, base_seed, shared_seed)


def worker_setup_in_child(pipe: Pipe, number: int, generation: int) -> dict[str, Any]:
    """Become a worker in another process and return its id, seed and signal handlers."""

    def become() -> None:
        framework = RecordsWorker()
        spec = WorkerSpec([1, 2], DatasetKind.MAP, default, framework, worker_count=3, base_seed=100)
        init_worker(spec, number, generation)
        assert framework.worker is not None
        pipe.send(
            {
                "id": framework.worker.id,
                "seed": framework.worker.seed,
                "interrupt": int(signal.getsignal(signal.SIGINT)),  # type: ignore[arg-type]  # SIG_IGN is a number
            }
        )

    with forked(become):
        reply: dict[str, Any] = pipe.line()
    return reply


def test_a_worker_ignores_sigint(pipe: Pipe) -> None:
    worker = worker_setup_in_child(pipe, 1, 0)
    assert (worker["id"], worker["interrupt"]) == (1, int(signal.SIG_IGN))


def test_no_two_workers_of_any_generation_draw_the_same_random_numbers(pipe: Pipe) -> None:
    seeds = [worker_setup_in_child(pipe, number, generation)["seed"] for generation in range(3) for number in range(3)]
    assert seeds[:3] == [100, 101, 102], "torch's own seeds, for the workers that come first"
    assert len(set(seeds)) == 9
