"""How the training process learns what a worker is doing."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from feedline.workers.processes.arena import Stacks
from feedline.workers.processes.link import STACK_SIGNAL


@pytest.fixture
def stacks() -> Iterator[Stacks]:
    stacks = Stacks()
    yield stacks
    stacks.close()


@contextmanager
def child(stacks: Stacks, work: Callable[[Callable[[], object]], None], *, listens: bool = True) -> Iterator[int]:
    """Run `work` in a child process; it gets a function to call when it has reached the place where it stays."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if listens:
                faulthandler.register(STACK_SIGNAL, file=stacks.far, all_threads=True)
            work(lambda: os.write(write, b"."))
        finally:
            os._exit(1)
    try:
        assert os.read(read, 1) == b"."
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


def wait_for_the_network(reached: Callable[[], object]) -> None:
    reached()
    while True:
        signal.pause()


def test_the_stack_names_the_function_in_which_a_process_waits(stacks: Stacks) -> None:
    with child(stacks, wait_for_the_network) as pid:
        for _ in range(3):
            stack = stacks.of(pid)
            assert stack is not None
            assert stack.count("wait_for_the_network") == 1, "each stack is a new one"
            assert __file__ in stack


def test_a_process_without_a_signal_handler_is_not_signalled(stacks: Stacks) -> None:
    with child(stacks, wait_for_the_network, listens=False) as pid:
        assert stacks.of(pid) is None
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it is still running"
