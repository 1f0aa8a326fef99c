"""Delay signals during operations that must not be interrupted half-way.

Python runs a signal handler between two instructions of the main thread, and an exception that the handler raises, such
as Ctrl-C or a timeout, is raised there. In the middle of a fork, such an exception is dropped if a fork hook is
running, and leaves an untracked process behind if the fork is done. In the middle of closing, it leaves files and
workers behind; in a finalizer it is printed and dropped, and Ctrl-C with it. So during these operations the handlers
are replaced by one that records the signal, and recorded signals are sent again once the handlers are back. A forked
child gets the handlers back at once; it must not receive Ctrl-C until it has set the signal to be ignored.
Test: tests/faults/test_storm.py, tests/system/test_interrupts.py
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from feedline.system.failures import signal_behind

if TYPE_CHECKING:
    _Handler = Callable[[int, FrameType | None], object] | int | None  # the result of signal.getsignal

_exchanged: dict[int, _Handler] = {}
"""Handlers that are currently replaced, by signal, for a child that is forked in the meantime."""

_NUMBERS = [int(number) for number in signal.valid_signals()]

_MOST_ATTEMPTS = 4
"""How often a finalizer is retried that was interrupted before signals were delayed."""


@contextmanager
def put_off(*, starts_process: bool = True, came: list[int] | None = None) -> Iterator[None]:
    """Handle signals that arrive inside the block at its end. Does nothing outside the main thread.

    All handlers that are Python functions are replaced with one that records the signal.

    Args:
        starts_process: True if the block starts a process, which must not receive Ctrl-C either.
        came: gets the signals that arrive; the caller sends them again. None to send them at the end of the block.
    """
    blocks = starts_process and hasattr(signal, "pthread_sigmask")  # not on Windows
    is_main = threading.get_ident() == threading.main_thread().ident  # Python's handlers run only there
    recorded: list[int] = [] if came is None else came
    # By the functions behind `signal`, whose own make enums of everything: in short epochs, that would take longer than
    # the batch.
    found = zip(_NUMBERS, map(_signal.getsignal, _NUMBERS), strict=True) if is_main else ()
    handlers = {number: handler for number, handler in found if callable(handler)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if blocks else set()
    before = dict(_exchanged)
    try:
        for number, handler in handlers.items():
            _exchanged.setdefault(number, handler)
            _signal.signal(number, lambda number, _: recorded.append(number))
        yield
    finally:
        try:
            if blocks:  # first, so that pending signals are recorded, and none arrives in between
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if is_main:
                _exchanged.clear()
                _exchanged.update(before)
                _put_back(handlers)
        finally:
            if came is None and recorded:
                _send_again(recorded)


def see_through(act: Callable[[], None]) -> None:
    """Run a finalizer. Python drops exceptions there, so signals wait until it is over.

    Args:
        act: may be called twice, if a signal arrives before signals are delayed.
    """
    came: list[int] = []
    for _ in range(_MOST_ATTEMPTS):
        try:
            with put_off(starts_process=False, came=came):
                act()
            break
        except BaseException as exc:
            number = signal_behind(exc)
            if number is None:
                raise
            came.append(number)
    if came:
        _thread.start_new_thread(
            _send_later, (came,)
        )  # not from `threading`, whose locks may be held: this may run anywhere


def ignore() -> None:
    """Ignore Ctrl-C in a worker for good: the training loop handles it, and then ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _put_back(handlers: dict[int, _Handler]) -> None:
    try:
        for number, handler in handlers.items():
            _signal.signal(number, handler)
    except BaseException:  # raised by a handler that is already back
        _put_back(handlers)
        raise


def _send_again(numbers: list[int]) -> None:
    if numbers:
        first, *others = sorted(set(numbers))
        try:
            signal.raise_signal(first)
        finally:
            _send_again(others)


def _send_later(numbers: list[int]) -> None:
    """Send signals again as soon as none of feedline's finalizers runs on the main thread."""
    main = threading.main_thread().ident
    while _sees_through(main):
        time.sleep(0.0005)  # it only has to return
    for number in sorted(set(numbers)):
        signal.raise_signal(number)


def _sees_through(thread: int | None) -> bool:
    frame = sys._current_frames().get(thread or 0)
    while frame is not None:
        if frame.f_code is see_through.__code__:
            return True
        frame = frame.f_back
    return False


def _put_back_in_child() -> None:
    for number, handler in _exchanged.items():
        signal.signal(number, handler)
    _exchanged.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_put_back_in_child)
