"""Threads of one process that take turns; a forked process finds nobody waiting."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


def _begin_child() -> None:
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Exclude the other threads of this process that want the same."""
    with _lock:
        yield


__all__ = ["one_at_a_time"]
