"""An event loop on its own thread, for a dataset's coroutines.

The caller's thread may already run an event loop, as in notebooks, and then cannot run a second one. So the dataset's
loop has its own thread, and the caller waits for it as for any other work. The loop keeps running between batches,
which keeps connections alive. It belongs to one dataset object in one process: it starts with the first batch and ends
with the dataset, or with the program. A forked process has none of its parent's threads and starts its own loop.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import weakref
from collections.abc import Coroutine
from multiprocessing import util
from typing import Any, TypeVar

from feedline.system.process import lock_of_process

T = TypeVar("T")

_PATIENCE_S = 5.0
"""How long ending a loop may take: the dataset's `aclose`, and tasks that it has started. A guess."""


class Loop:
    """An event loop that runs on a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="feedline-async", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()
            self._ended.set()

    @property
    def is_alive(self) -> bool:
        """False in a process that was forked from the one where the loop runs."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def run(self, coroutine: Coroutine[object, object, T]) -> T:
        """Wait for a coroutine. If the wait is interrupted, cancel the coroutine."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # Ctrl-C
                future.cancel()
            raise

    def close(self, *last: Coroutine[object, object, object]) -> None:
        """Await the given coroutines, then end the loop and its thread. May be called twice."""
        if not self.is_alive or threading.get_ident() == self._thread.ident:
            for coroutine in last:
                coroutine.close()
            return
        future = asyncio.run_coroutine_threadsafe(_ended(last), self._loop)
        try:
            future.result(_PATIENCE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            # Not `join`: the dataset may be dropped by a worker thread that has almost ended, and that Python no longer
            # counts among its threads.
            self._ended.wait(_PATIENCE_S)


async def _ended(last: tuple[Coroutine[object, object, object], ...]) -> None:
    """Await the last coroutines, and cancel tasks that are still running."""
    try:
        for coroutine in last:
            await coroutine
    finally:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.get_running_loop().shutdown_asyncgens()
        await asyncio.get_running_loop().shutdown_default_executor()


_loops: dict[int, Loop] = {}
"""By the id of the dataset, while it lives."""
_one_thread = lock_of_process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_loops.clear)


def loop_of(dataset: object) -> Loop:
    """Return the loop of a dataset in this process; start it if necessary."""
    with _one_thread:
        loop = _loops.get(id(dataset))
        if loop is None or not loop.is_alive:
            loop = _loops[id(dataset)] = Loop()
            _end_with(dataset, loop)
        return loop


def _end_with(dataset: object, loop: Loop) -> None:
    try:
        finalizer = weakref.finalize(dataset, _end, id(dataset), loop, _twin_of(dataset))
    except TypeError:
        return  # no weak references to it: the loop ends with the program
    if multiprocessing.parent_process() is not None:  # `atexit` is not reliable there
        util.Finalize(None, finalizer, exitpriority=1)


# Any, here and below: a dataset of any type.
def _twin_of(dataset: Any) -> Any:
    """Return an object that shares the dataset's class and attributes, but does not keep the dataset alive.

    None if there is nothing to close.
    """
    if not hasattr(type(dataset), "aclose") or not hasattr(dataset, "__dict__"):
        return None
    twin = object.__new__(type(dataset))
    object.__setattr__(twin, "__dict__", dataset.__dict__)
    return twin


def _end(key: int, loop: Loop, twin: Any) -> None:
    if _loops.get(key) is loop:
        del _loops[key]
    if not loop.is_alive:
        return
    loop.close(*(() if twin is None else (twin.aclose(),)))
