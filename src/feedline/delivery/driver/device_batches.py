"""Batches prepared for a device ahead of time.

Batches are requested from an iteration before the training loop needs them. A `Target` starts preparing each (copying,
decoding or transforming it), and they are delivered in order. If preparing costs the CPU next to nothing, the training
loop does it itself, in `next()`; otherwise threads do.

The state of a loader describes the batches that the training loop has received. So the epoch records its progress in a
copy, and each prepared batch carries a copy of the progress after it. Delivering the batch updates the checkpoint.

A user's own sampler is called only in `next()`, in the thread that calls it. There it draws from the process-wide
generators at the same moments every time, and no state is saved while it runs. Threads then only call the target.

A signal handler may run when any Python function begins or returns. Inside a `Condition` it would leave a lock taken.
So this module uses plain locks, which `with` acquires and releases in one step, and waits on queues.

Threads live as long as the iteration. They hold no reference to it, so dropping the iterator ends them. At the end of
the program they are joined, because a thread that is ended inside CUDA crashes the program.
"""

from __future__ import annotations

import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from feedline.abc.target import Target
from feedline.delivery.driver.batches import WorkerBatches
from feedline.delivery.driver.caller_lock import OneCallerBatches
from feedline.delivery.driver.driver import RowParts
from feedline.delivery.driver.inline_batches import InlineBatches
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.order.progress import Progress
from feedline.randomness.scope import Scope, enter
from feedline.system import interrupts
from feedline.system.failures import is_interrupt
from feedline.types import Draw

_LOOK_UP_S = 0.05
"""How often to interrupt a wait to check whether it should end. Nothing else depends on it."""

_DEVICE = 1 << 61
"""The salt of a transform on the device, so that it draws other random numbers than the samples of its batch."""

_ASKED, _TAKEN, _BATCH, _ERROR, _END = range(5)


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
        batches.keeps_rows = True
        self._target = target
        self._line = line = _Line(batches, target, fault_budget)
        self._threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, interrupts.see_through, functools.partial(_end, line, self._threads))

    def begin(self) -> None:
        """Start another epoch of the same iteration; drop the prepared batches."""
        self._line.drop()

    def ready_count(self) -> int:
        line = self._line
        with line.lock:
            return sum(item[0] is _BATCH and number >= line.taken for number, item in line.items.items())

    @contextmanager
    def still(self) -> Iterator[None]:
        """Keep threads from requesting batches meanwhile. Waits for a thread that is waiting for one."""
        line = self._line
        line.pauses += 1  # otherwise a thread that has just got its batch could take the lock again first
        try:
            with line.asking:
                yield
        finally:
            line.pauses -= 1

    def _next(self) -> object:
        line, observer = self._line, self._batches.counters.observer
        if self.leaving:
            raise StopIteration
        asked = time.monotonic_ns()
        if self._threads:
            if line.is_begun_by_loop():
                with line.asking:
                    line.ask()
            elif line.is_asked_by_loop():
                line.ask_for_threads()
            item = line.wait()
        else:
            item = line.fetch()
            if line.thread_count:  # the target has seen a batch, and found that preparing one costs CPU time
                with interrupts.put_off(starts_process=False):
                    self._start()
        kind, value, noted, row_parts, _ = item
        error = value if kind is _ERROR else None
        if kind is _ERROR:
            line.resume(item)
        elif kind is _BATCH:
            try:
                with _drawing(item[4]):
                    value = self._target.deliver(value)
            except BaseException as exc:
                if is_interrupt(exc):
                    raise
                error = exc  # it would be raised again and again
        if kind is _END:
            observer.end(self._batches.counters.batches, asked)
        elif row_parts is not None and error is None:
            self._write(row_parts, asked)
        progress = line.progress
        # From here on nothing is called, so no signal handler runs: see `feedline.delivery.driver.caller_lock`.
        item[1] = None
        progress.delivered, progress.early, progress.notes = noted.delivered, noted.early, noted.notes
        progress.streams, progress.turn, progress.read = noted.streams, noted.turn, noted.read
        progress.missing, progress.faults = noted.missing, noted.faults
        if kind is _END:
            self.ending = progress if noted.ended else None
            raise StopIteration
        line.taken += 1
        if error is not None:
            raise error
        return value

    def _write(self, row_parts: tuple[RowParts, int], asked: int) -> None:
        (before, (behind, _, held, first)), ready = row_parts
        observer, got = self._batches.counters.observer, time.monotonic_ns()
        # The training loop does not wait for a copy to finish, only for starting and delivering it.
        device = (got if ready >= asked else ready) - before[-1]
        # None: the loader's own count runs ahead of what was delivered.
        observer.write(before, asked, got, (behind, device, held, first), None)
        observer.got = got  # every batch has a row

    def _start(self) -> None:
        for number in range(self._line.thread_count):
            name = f"feedline-device-{number}"
            thread = threading.Thread(target=_work, args=(self._line,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        self._line.stopping = True
        self._batches.close()  # ends a wait for a batch there
        super().close()

    def _close(self) -> None:
        self._finalizer()


_Item = list[Any]
"""A batch: its kind, the batch or an exception, the progress of the epoch after it, its measurements, and the random
numbers of the target's transform.
"""


class _Line:
    """Batches being prepared, in order. Shared by the training loop and the threads."""

    def __init__(self, batches: InlineBatches | WorkerBatches, target: Target, fault_budget: FaultBudget) -> None:
        self.batches = batches
        self._fault_budget = fault_budget
        self.target = target
        self.pid = os.getpid()
        # Batches that the training loop makes itself are made on request. Requesting one from a source that
        # acknowledges its samples reports the previous batch as consumed, so that must not happen early.
        self._runs_ahead = isinstance(batches, WorkerBatches) and not batches.driver.wants_receipts
        self.asking = threading.RLock()
        """Held while requesting a batch from the iteration."""
        self.lock = threading.Lock()
        """Held while changing `items`, or relying on their content."""
        self._there_is_room: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes threads."""
        self._is_ready: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the training loop."""
        self.items: dict[int, _Item] = {}
        """Prepared batches by number."""
        self.unready: list[object] | None = None
        """The batch that the training loop is preparing itself, also after an interrupt."""
        self.unbegun: dict[int, list[object]] = {}
        """Batches that the training loop has requested, and that threads are to prepare."""
        self.asked = 0
        """Number of batches requested."""
        self.taken = 0
        """Number of batches delivered to the training loop."""
        self.halted: list[object] | None = None
        """An end or an error. No batch is requested until the training loop has received it."""
        self.pauses = 0
        """Number of callers that keep threads from requesting batches."""
        self.stopping = False
        self._begin_epoch()

    @property
    def thread_count(self) -> int:
        """How many threads prepare batches; 0 if the training loop does."""
        return self.target.threads if self._runs_ahead else 0

    @property
    def progress(self) -> Progress:
        """The position of the training loop, as saved in the loader's state."""
        progress: Progress = self.batches.checkpoint.entry.progress
        return progress

    def _begin_epoch(self) -> None:
        """Record the beginning of the epoch, before the first request."""
        self.progress.become(self._progress_now())

    def _progress_now(self) -> Progress:
        """Return the progress of the epoch, including its fault counts."""
        progress = self.batches.progress.copy()
        progress.faults = self._fault_budget.mark()
        return progress

    def drop(self) -> None:
        """Drop the prepared batches."""
        with self.asking, self.lock:
            self.items.clear()
            self.unbegun.clear()
            if self.unready is not None and self.unready[0] is not _ASKED:
                self.unready = None
            self.taken = self.asked
            self.halted = None
        self._begin_epoch()
        self.wake()

    # -- in the training loop -----------------------------------------------------------------------------------------

    def fetch(self) -> _Item:
        """Return the next batch, and start preparing others that have already arrived."""
        self.items.pop(self.taken - 1, None)
        if self.taken == self.asked:
            self.ask()
        while self._has_space() and self.batches.is_ready():
            self.ask()
        return self.items[self.taken]

    def is_begun_by_loop(self) -> bool:
        """True if the next batch is the first of an epoch, which `set_epoch()` may change until it is requested."""
        return self.batches.at_first is not None or self.unready is not None

    def is_asked_by_loop(self) -> bool:
        """True if every batch calls the user's own sampler."""
        plan = self.batches.checkpoint.plan
        return plan is not None and plan.asks_user

    def ask_for_threads(self) -> None:
        """Request the next batch, and others that have already arrived, for threads to prepare."""
        while self.taken == self.asked or (self._has_space() and self.batches.is_ready()):
            item = self.unready = _asked()
            self._take(item)
            number = self.asked
            # Nothing is called in between, so an interrupt neither loses the batch nor has it prepared twice.
            self.unbegun[number], self.unready, self.asked = item, None, number + 1

    def wait(self) -> _Item:
        """Wait for the next batch and return it."""
        self.items.pop(self.taken - 1, None)
        self.wake()  # there is space for another one
        while self.taken not in self.items:
            if self.stopping:
                raise StopIteration
            _wait(self._is_ready)
        return self.items[self.taken]

    def resume(self, item: list[object]) -> None:
        """Allow requests again: an error is about to be raised."""
        if self.halted is item:
            self.halted = None
        self.wake()

    def wake(self) -> None:
        """Wake all waiting threads, to check their conditions again."""
        for waiting, count in ((self._there_is_room, self.thread_count), (self._is_ready, 1)):
            while waiting.qsize() < count:
                waiting.put(None)

    # -- in any thread that prepares batches -------------------------------------------------------------------------

    def ask(self) -> None:
        """Prepare another batch, or the interrupted one again."""
        item = self.unready = self.unready or _asked()
        self._take(item)
        self._begin(item)
        self.items[self.asked], self.unready = item, None
        self.asked += 1

    def work(self) -> bool:
        """Prepare another batch, as one of several threads, once there is space for it; False at the end."""
        while not self.stopping and not self.unbegun and not self._is_wanted():
            _wait(self._there_is_room)
        with self.asking:
            if self.stopping:
                return False
            if self.unbegun:
                number = min(list(self.unbegun))  # a copy: the training loop may add another one meanwhile
                item = self.unbegun.pop(number)
            elif self._is_wanted():
                number, item = self.asked, _asked()
                self._take(item, in_thread=True)
                self.asked += 1
            else:
                return True  # another thread was faster
        self._begin(item, in_thread=True)
        with self.lock:
            if number >= self.taken:  # otherwise another epoch has started
                self.items[number] = item
        self.wake()
        return True

    def _is_wanted(self) -> bool:
        by_loop = self.is_begun_by_loop() or self.is_asked_by_loop()
        return not self.pauses and not by_loop and self._has_space()

    def _has_space(self) -> bool:
        ahead = self.target.ahead if self._runs_ahead else 0
        return self.asked - self.taken <= ahead and self.halted is None

    def _take(self, item: _Item, *, in_thread: bool = False) -> None:
        try:
            if item[0] is _ASKED:
                item[1] = self.batches.__next__()
                item[0] = _TAKEN  # nothing is called in between, so an interrupt does not lose the batch
                item[3] = self.batches.row_parts
        except StopIteration:
            item[0], self.halted = _END, item
        except BaseException as exc:
            if is_interrupt(exc) and not in_thread:
                raise
            item[0], item[1], self.halted = _ERROR, exc, item
        if item[2] is None:
            item[2] = self._progress_now()
        if item[0] is _TAKEN and item[4] is None:
            plan = self.batches.checkpoint.plan
            item[4] = None if plan is None else plan.draw_after(item[2])

    def _begin(self, item: _Item, *, in_thread: bool = False) -> None:
        if item[0] is not _TAKEN:
            return
        try:
            with _drawing(item[4]):
                item[1] = self.target.begin(item[1])
                item[0] = _BATCH
                item[3] = None if item[3] is None else (item[3], time.monotonic_ns())
        except BaseException as exc:
            if is_interrupt(exc) and not in_thread:
                raise
            item[0], item[1] = _ERROR, exc


def _asked() -> list[object]:
    return [_ASKED, None, None, None, None]


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


def _wait(waiting: queue.SimpleQueue[None]) -> None:
    with suppress(queue.Empty):
        waiting.get(timeout=_LOOK_UP_S)


def _work(line: _Line) -> None:
    while line.work():
        pass


def _end(line: _Line, threads: list[threading.Thread]) -> None:
    """End the threads, and wait for them."""
    line.stopping = True
    if line.pid != os.getpid():
        return  # a copy: threads and device belong to the process that this one was forked from
    if threads:
        line.batches.close()
    line.wake()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
    line.items.clear()
    line.target.close()
