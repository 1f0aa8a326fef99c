"""Batches prepared for a device ahead of time.

The training loop requests batches from an iteration before it needs them, in `next()`: the next one, and others that
have already arrived. A `Target` starts preparing each (copying, decoding or transforming it), and they are delivered in
order. If preparing costs the CPU next to nothing, the training loop does that too; otherwise threads do.

The state of a loader describes the batches that the training loop has received. So each prepared batch carries a copy
of the progress after it, and delivering the batch puts that into the checkpoint.

Threads live as long as the iteration. They hold no reference to it, so dropping the iterator ends them. At the end of
the program they are joined, because a thread that is ended inside CUDA crashes the program. They and the training loop
wait on queues, which unlike a `Condition` leave no lock taken if a signal handler raises.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from feedline.abc.deferred import Target
from feedline.delivery.driver.batches import WorkerBatches
from feedline.delivery.driver.caller_lock import OneCallerBatches
from feedline.delivery.driver.driver import RowParts
from feedline.delivery.driver.inline_batches import InlineBatches
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.order.plan import Progress
from feedline.randomness.scope import Scope, enter
from feedline.system import interrupts
from feedline.system.failures import is_interrupt
from feedline.types import Draw

_LOOK_UP_S = 0.05
"""How often to interrupt a wait to check whether it should end. Nothing else depends on it."""

_DEVICE = 1 << 61
"""The salt of a transform on the device, so that it draws other random numbers than the samples of its batch."""


@dataclass(slots=True)
class _Item:
    """A batch, or an exception or the end of the epoch in place of one."""

    progress: Progress
    """The progress of the epoch after it."""
    # Any: a batch of any structure; once it is ready, what `Target.begin` returned.
    batch: Any = None
    error: BaseException | None = None
    is_end: bool = False
    has_ended: bool = False
    """True if that is the end of the epoch, not of an iteration that was closed."""
    is_ready: bool = False
    draw: Draw | None = None
    """The random numbers of the target's transform."""
    row_parts: RowParts | None = None
    """Its measurements."""
    ready: int = 0
    """When it was ready."""


class DeviceBatches(OneCallerBatches):
    """The batches of an iteration, on a device.

    Args:
        batches: makes the batches.
        target: prepares them.
        fault_budget: counts samples that fail.
    """

    def __init__(self, batches: InlineBatches | WorkerBatches, target: Target, fault_budget: FaultBudget) -> None:
        super().__init__()
        self._batches = batches
        self._rows: list[RowParts] = []
        """What is known about the batch that was just requested; nothing if it gets no row."""
        (batches.driver if isinstance(batches, WorkerBatches) else batches).rows = self._rows
        self._target = target
        self._fault_budget = fault_budget
        # Batches that the training loop makes itself are made on request. Requesting one from a source that
        # acknowledges its samples reports the previous batch as consumed, so that must not happen early.
        self._runs_ahead = isinstance(batches, WorkerBatches) and batches.driver.acknowledgements is None
        self._items: deque[_Item] = deque()
        """Batches that were requested and not delivered yet."""
        self._to_prepare: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        """Batches for the threads; None ends one of them."""
        self._prepared: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the training loop."""
        self._prepared_until = 0
        """When the training loop last prepared a batch itself, this one or one ahead of it."""
        self._threads: list[threading.Thread] = []
        end = functools.partial(_end, os.getpid(), self._threads, self._to_prepare, self._items, target)
        self._finalizer = weakref.finalize(self, interrupts.see_through, end)
        self.begin()

    def begin(self) -> None:
        """Start another epoch of the same iteration; drop the prepared batches."""
        _empty(self._to_prepare)
        self._items.clear()
        self._batches.checkpoint.entry.progress, self._is_torn = self._progress(), False

    def ready_count(self) -> int:
        return sum(item.is_ready and item.error is None and not item.is_end for item in self._items)

    def _next(self) -> object:
        if self.leaving:
            raise StopIteration
        self._is_torn = True
        asked = time.monotonic_ns()
        items = self._items
        while not items or (self._has_space() and self._batches.is_ready()):
            self._request()
        while not items[0].is_ready:
            if self.leaving:
                raise StopIteration
            with suppress(queue.Empty):
                self._prepared.get(timeout=_LOOK_UP_S)
        item = items.popleft()
        observer, error, batch = self._batches.counters.observer, item.error, None
        if item.is_end:
            observer.end(self._batches.counters.batches, asked)
        elif error is None:
            try:
                with _drawing(item.draw):
                    batch = self._target.deliver(item.batch)
                if item.row_parts is not None:
                    self._write(item.row_parts, asked, max(item.ready, self._prepared_until))
            except BaseException as exc:
                if is_interrupt(exc):
                    raise
                error = exc
        entry = self._batches.checkpoint.entry
        # From here on nothing is called, so no signal handler runs: see `feedline.delivery.driver.caller_lock`.
        entry.progress, self._is_torn = item.progress, False
        if item.is_end:
            self.ending = item.progress if item.has_ended else None
            raise StopIteration
        if error is not None:
            raise error
        return batch

    def _has_space(self) -> bool:
        """True if another batch may be requested; after an end or an error, none is before it was delivered."""
        last = self._items[-1]
        ahead = self._target.ahead if self._runs_ahead else 0
        return len(self._items) <= ahead and last.error is None and not last.is_end

    def _request(self) -> None:
        """Request a batch, and prepare it or leave that to a thread."""
        batch, error, is_end, row_parts = None, None, False, None
        try:
            batch = self._batches.__next__()
            row_parts = self._rows.pop() if self._rows else None
        except StopIteration:
            is_end = True
        except BaseException as exc:
            if is_interrupt(exc):
                raise
            error = exc
        progress = self._progress()
        has_ended, progress.ended = progress.ended, False  # until the training loop is told
        item = _Item(progress, batch, error, is_end, has_ended, row_parts=row_parts)
        if is_end or error is not None:
            item.is_ready = True
        else:
            plan = self._batches.checkpoint.plan
            item.draw = None if plan is None else plan.draw_after(item.progress)
            threads = self._threads_to_use()
            if threads:
                self._to_prepare.put(item)
            else:
                _prepare(item, self._target)
                self._prepared_until = item.ready
        self._items.append(item)

    def _threads_to_use(self) -> list[threading.Thread]:
        """Return the threads, once the target has found that preparing a batch costs CPU time."""
        if not self._threads and self._runs_ahead and self._target.threads:
            with interrupts.put_off(starts_process=False):
                arguments = (self._to_prepare, self._prepared, self._target)
                for number in range(self._target.threads):
                    name = f"feedline-device-{number}"
                    thread = threading.Thread(target=_work, args=arguments, name=name, daemon=True)
                    self._threads.append(thread)
                    thread.start()
        return self._threads

    def _progress(self) -> Progress:
        """Return a copy of the progress of the epoch, with its fault counts."""
        progress = self._batches.progress.copy()
        progress.faults = self._fault_budget.mark()
        return progress

    def _write(self, row_parts: RowParts, asked: int, ready: int) -> None:
        before, (behind, _, held, first) = row_parts
        observer, got = self._batches.counters.observer, time.monotonic_ns()
        # The training loop does not wait for a copy to finish, only for starting and delivering it.
        device = (got if ready >= asked else ready) - before[-1]
        # None: the loader's own count runs ahead of what was delivered.
        observer.write(before, asked, got, (behind, device, held, first), None)
        observer.got = got  # every batch has a row

    def close(self) -> None:
        self._batches.close()  # ends a wait for a batch there
        super().close()

    def _close(self) -> None:
        self._finalizer()


def _prepare(item: _Item, target: Target) -> None:
    try:
        with _drawing(item.draw):
            item.batch = target.begin(item.batch)
    except BaseException as exc:
        if is_interrupt(exc):
            raise
        item.batch, item.error = None, exc
    item.ready = time.monotonic_ns()
    item.is_ready = True


@contextmanager
def _drawing(draw: Draw | None) -> Iterator[None]:
    """Let `rng()` return the generator of a batch: the same for a seed, in any thread and after resuming."""
    scope = Scope()
    scope.salt = _DEVICE
    scope.begin(draw or Draw(0))
    before = enter(scope)
    try:
        yield
    finally:
        enter(before)


def _work(to_prepare: queue.SimpleQueue[_Item | None], prepared: queue.SimpleQueue[None], target: Target) -> None:
    while (item := to_prepare.get()) is not None:
        _prepare(item, target)
        del item  # or it would keep the batch until the next one
        prepared.put(None)


def _empty(to_prepare: queue.SimpleQueue[_Item | None]) -> None:
    with suppress(queue.Empty):
        while True:
            to_prepare.get_nowait()


def _end(
    pid: int,
    threads: list[threading.Thread],
    to_prepare: queue.SimpleQueue[_Item | None],
    items: deque[_Item],
    target: Target,
) -> None:
    """End the threads, and wait for them."""
    if pid != os.getpid():
        return  # a copy: threads and device belong to the process that this one was forked from
    _empty(to_prepare)
    for _ in threads:
        to_prepare.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
    items.clear()
    target.close()
