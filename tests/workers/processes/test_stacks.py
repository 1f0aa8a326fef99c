"""What a worker is doing, as the training process learns it."""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from feedline.workers.processes.stacks import Stacks
from feedline.workers.processes.worker import STACK_SIGNAL


@pytest.fixture
def stacks() -> Iterator[Stacks]:
    stacks = Stacks()
    yield stacks
    stacks.close()


@contextmanager
def child(stacks: Stacks, work: Callable[[Callable[[], object]], None], *, listens: bool = True) -> Iterator[int]:
    """A process that works; `work` gets a function that says it has come to where it stays."""
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


def wait_for_the_network(there: Callable[[], object]) -> None:
    there()
    while True:
        signal.pause()


def decode_on_a_thread(there: Callable[[], object]) -> None:
    threading.Thread(target=wait_for_the_network, args=(there,), daemon=True).start()
    signal.pause()


def test_the_function_is_named_in_which_a_process_waits(stacks: Stacks) -> None:
    with child(stacks, wait_for_the_network) as pid:
        for _ in range(3):
            told = stacks.of(pid)
            assert told is not None
            assert told.count("wait_for_the_network") == 1, "each time what is so now"
            assert __file__ in told


def test_every_thread_is_told_of(stacks: Stacks) -> None:
    with child(stacks, decode_on_a_thread) as pid:
        told = stacks.of(pid) or ""
        assert "decode_on_a_thread" in told
        assert "wait_for_the_network" in told


def test_what_came_too_late_is_not_taken_for_the_answer(stacks: Stacks) -> None:
    os.write(stacks.far, b"of somebody else")
    with child(stacks, wait_for_the_network) as pid:
        told = stacks.of(pid) or ""
        assert "somebody else" not in told
        assert "wait_for_the_network" in told


def test_a_process_that_would_be_ended_by_the_question_is_not_asked(stacks: Stacks) -> None:
    with child(stacks, wait_for_the_network, listens=False) as pid:
        assert stacks.of(pid) is None
        assert os.waitpid(pid, os.WNOHANG) == (0, 0), "it lives"


def test_a_process_that_is_stopped_is_not_waited_for(stacks: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.workers.processes.stacks._PATIENCE_S", 1e6)
    with child(stacks, wait_for_the_network) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        assert stacks.of(pid) is None


def test_a_process_that_does_not_answer_is_given_up(stacks: Stacks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedline.workers.processes.stacks._PATIENCE_S", 0.01)
    elsewhere = os.open(os.devnull, os.O_WRONLY)

    def hide(there: Callable[[], object]) -> None:
        faulthandler.register(STACK_SIGNAL, file=elsewhere)
        wait_for_the_network(there)

    with child(stacks, hide) as pid:
        assert stacks.of(pid) is None
    os.close(elsewhere)


def test_a_process_that_is_gone_says_nothing(stacks: Stacks) -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert stacks.of(pid) is None


def test_closing_gives_both_ends_back_and_may_be_done_twice() -> None:
    before = len(os.listdir("/proc/self/fd"))
    stacks = Stacks()
    stacks.close()
    stacks.close()
    assert len(os.listdir("/proc/self/fd")) == before
