"""An event loop on a thread of its own, for coroutines of a dataset.

The caller's thread may run an event loop itself, as notebooks do, and then cannot run a second one. So the dataset's
loop has a thread, and the caller waits for it as it would for any other work; between batches the loop goes on running,
which keeps connections alive. It belongs to one dataset object in one process: it begins with the first batch and ends
with the dataset, or with the program. A forked process has no threads of its parent and begins another.
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
"""How long the end of a loop may take: `aclose` of the dataset, and tasks that it has begun. A guess."""


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
        """False in a process that was forked from the one where it runs."""
        return self._pid == os.getpid() and self._thread.is_alive()

    # Any: what a coroutine yields and is sent is asyncio's affair.
    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine. If the wait is interrupted, it is cancelled, and what it leaves undone is awaited."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            if not future.done():  # Ctrl-C
                future.cancel()
            raise

    def close(self, *last: Coroutine[Any, Any, Any]) -> None:
        """End the loop and its thread, after awaiting what is given. May be called twice."""
        if not self.is_alive or threading.get_ident() == self._thread.ident:
            for coroutine in last:
                coroutine.close()
            return
        future = asyncio.run_coroutine_threadsafe(_ended(last), self._loop)
        try:
            future.result(_PATIENCE_S)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            # Not `join`: a worker thread that has all but ended may be the one that drops the dataset, and is none of
            # Python's threads any more.
            self._ended.wait(_PATIENCE_S)


async def _ended(last: tuple[Coroutine[Any, Any, Any], ...]) -> None:
    """Await what is last, and cancel what is still under way."""
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


# Any: a dataset is any object.
def loop_of(dataset: Any) -> Loop:
    """Return the loop of a dataset in this process; begins it if need be."""
    with _one_thread:
        loop = _loops.get(id(dataset))
        if loop is None or not loop.is_alive:
            loop = _loops[id(dataset)] = Loop()
            _end_with(dataset, loop)
        return loop


def _end_with(dataset: Any, loop: Loop) -> None:
    try:
        finalizer = weakref.finalize(dataset, _end, id(dataset), loop, _twin_of(dataset))
    except TypeError:
        return  # nobody can refer to it weakly: the loop ends with the program
    if multiprocessing.parent_process() is not None:  # where `atexit` is not to be relied on
        util.Finalize(None, finalizer, exitpriority=1)


def _twin_of(dataset: Any) -> Any:
    """Return an object with the dataset's class and its very attributes, which does not keep it alive.

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
    loop.close(*(() if twin is None else (_closing(twin),)))


async def _closing(twin: Any) -> None:
    await twin.aclose()
