"""Ctrl-C while a worker is being started: put off until the worker is known, so that nobody is left behind.

An exception in the middle of a fork is dropped if a fork hook is running, and leaves a process behind that nobody knows
if the fork is done. The child would show a traceback of its own until it has said that it ignores the signal.
Test: tests/faults/test_ends.py
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def put_off(*, starts_process: bool = True) -> Iterator[None]:
    """Have Ctrl-C raised at the end of the block if it comes inside.

    Args:
        starts_process: True if a process is started in the block, which is not to hear it either.
    """
    came: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()  # only there do Python's handlers run
    blocks = starts_process and hasattr(signal, "pthread_sigmask")  # not on Windows
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if blocks else set()
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number)) if is_main else None
    try:
        yield
    finally:
        if blocks:  # first, so that what is waiting is noted, and nothing comes between
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if is_main:
            signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(signal.SIGINT)


def ignore() -> None:
    """Ignore Ctrl-C in a worker for good: it is for the training loop, which then ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
