"""Repeats runs in real time, for tests marked `real_time`: a busy machine may disturb one."""

from __future__ import annotations

from collections.abc import Callable

_TRIES = 5


def try_again(check: Callable[[], None], tries: int = _TRIES) -> None:
    """Call a check until it raises no AssertionError; raise the last one if it always does."""
    for _ in range(tries - 1):
        try:
            check()
        except AssertionError:
            continue
        return
    check()
