"""Signals are deferred while something must not be interrupted, and none is lost."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from feedline.system import interrupts


class Late(Exception):
    """Raised by a signal handler for timeouts."""


def on_alarm(number: int, frame: Any) -> None:
    raise Late


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM, signal.SIGUSR1)}
    signal.signal(signal.SIGALRM, on_alarm)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


RAISED: list[tuple[int, type[BaseException]]] = [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, Late)]


@pytest.mark.parametrize(("number", "raised"), RAISED)
@pytest.mark.parametrize("starts_process", [True, False])
def test_a_signal_inside_the_block_is_raised_at_its_end(
    number: int, raised: type[BaseException], starts_process: bool
) -> None:
    done = []

    def work() -> None:
        with interrupts.put_off(starts_process=starts_process):
            signal.raise_signal(number)
            done.append("all")

    with pytest.raises(raised):
        work()
    assert done == ["all"]
    assert signal.getsignal(signal.SIGALRM) is on_alarm


def test_each_of_several_deferred_signals_is_handled() -> None:
    handled = []
    signal.signal(signal.SIGUSR1, lambda number, _: handled.append(number))

    def work() -> None:
        with interrupts.put_off(starts_process=False):
            for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGALRM, signal.SIGINT):
                signal.raise_signal(number)

    with pytest.raises(Late) as caught:
        work()
    assert isinstance(caught.value.__context__, KeyboardInterrupt)
    assert handled == [signal.SIGUSR1]


def test_a_child_forked_inside_the_block_has_the_handlers_of_its_parent() -> None:
    with interrupts.put_off():
        child = os.fork()
        if child == 0:
            os._exit(0 if signal.getsignal(signal.SIGALRM) is on_alarm else 1)
        status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == 0


class Mortal:
    """An object with a finalizer."""


def run_in_finalizer(act: Callable[[], None]) -> None:
    """Run `act` in a finalizer and continue; a deferred exception is raised at any moment then."""
    thing = Mortal()
    weakref.finalize(thing, interrupts.see_through, act)
    del thing
    patience = threading.Event()
    while not patience.wait(0.01):  # it is raised between two instructions, not during a wait
        continue


@pytest.mark.parametrize(("number", "raised"), RAISED)
def test_a_signal_in_a_finalizer_is_raised_after_it(number: int, raised: type[BaseException]) -> None:
    """Python would print and drop it."""
    done = []

    def act() -> None:
        signal.raise_signal(number)
        done.append("all")

    with pytest.raises(raised):
        run_in_finalizer(act)
    assert done == ["all"]


def test_a_finalizer_interrupted_at_its_very_start_is_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    done = []
    put_off = interrupts.put_off
    attempts = []

    def interrupted(**options: Any) -> Any:
        attempts.append(1)
        if len(attempts) == 1:
            signal.raise_signal(signal.SIGALRM)
        return put_off(**options)

    monkeypatch.setattr(interrupts, "put_off", interrupted)
    with pytest.raises(Late):
        run_in_finalizer(lambda: done.append("all"))
    assert done == ["all"]
    assert len(attempts) == 2
