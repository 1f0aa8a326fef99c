"""Batches that are got ready for a device ahead of time.

An iteration is asked for batches before the training loop does so, a `Target` begins what is to be done about each
(copy it, decode it, transform it), and they are handed over in order. Where that costs the processor next to nothing
it is done by the training loop itself, in `next()`; otherwise by threads.

The state of a loader is about the batches that the training loop has got. So the epoch notes its progress in a copy,
and with each batch it is kept how far that was; when the batch is handed over, the checkpoint is told.

A sampler of the user's own is asked in `next()` only, in the thread that calls it: there it draws from the generators
of the process at the same moments every time, and no state is told while it runs. Threads then only call the target.

A signal may come when any function of Python begins or returns: inside of a `Condition` it would leave a lock taken. So
there are plain locks, which `with` takes and gives back in one, and queues to wait for.

Threads live as long as the iteration. They do not hold it, so that dropping the iterator ends them; at the end of the
program they are waited for, because a thread that is ended inside of CUDA takes the program down with it.
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
from feedline.delivery.driver.inline_batches import InlineBatches
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.order.progress import Progress
from feedline.system.failures import is_interrupt
from feedline.workers import interrupts

_LOOK_UP_S = 0.05
"""How often somebody who waits looks whether anybody wants it to end. Nothing else depends on it."""

_ASKED, _TAKEN, _BATCH, _ERROR, _END = range(5)


class DeviceBatches(OneCallerBatches):
    """The batches of an iteration, on a device.

    Args:
        batches: where they come from.
        target: what is done about them.
        fault_budget: the account of samples that fail.
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
        """Begin another epoch of the same iteration: what was got ready is dropped."""
        self._line.drop()

    def ready_count(self) -> int:
        line = self._line
        with line.lock:
            return sum(item[0] is _BATCH and number >= line.taken for number, item in line.items.items())

    @contextmanager
    def still(self) -> Iterator[None]:
        """Let no thread ask for a batch meanwhile; one that waits for a batch is waited for."""
        line = self._line
        line.pauses += 1  # a thread that has got its batch would be faster than whoever waits for it
        try:
            with line.asking:
                yield
        finally:
            line.pauses -= 1

    def _next(self) -> Any:
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
            if line.thread_count:  # what the target has seen by now keeps a processor busy
                with interrupts.put_off(starts_process=False):
                    self._start()
        kind, value, noted, row_parts = item
        error = value if kind is _ERROR else None
        if kind is _ERROR:
            line.resume(item)
        elif kind is _BATCH:
            try:
                value = self._target.deliver(value)
            except BaseException as exc:
                if is_interrupt(exc):
                    raise
                error = exc  # which would come again and again
        if kind is _END:
            observer.end(self._batches.counters.batches, asked)
        elif row_parts is not None and error is None:
            self._write(row_parts, asked)
        progress = line.progress
        # From here on nothing is called, so that no signal comes between: see `feedline.delivery.driver.caller_lock`.
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

    # Any: what is known of the batch, and when it was got ready.
    def _write(self, row_parts: Any, asked: int) -> None:
        (before, (behind, _, held, first)), ready = row_parts
        observer, got = self._batches.counters.observer, time.monotonic_ns()
        # A copy is not waited for by the training loop: what counts is what it takes to begin and to hand over.
        device = (got if ready >= asked else ready) - before[-1]
        # The loader's own count runs ahead of what was delivered.
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
        self._batches.close()  # whoever waits for a batch there gets none
        super().close()

    def _close(self) -> None:
        self._finalizer()


class _Line:
    """Batches that are got ready, in order. Shared by the training loop and the threads."""

    def __init__(self, batches: InlineBatches | WorkerBatches, target: Target, fault_budget: FaultBudget) -> None:
        self.batches = batches
        self._fault_budget = fault_budget
        self.target = target
        self.pid = os.getpid()
        # Batches that the training loop makes itself are made when it asks. Sources that hear which samples were
        # consumed hear it when the next one is asked for.
        self._runs_ahead = isinstance(batches, WorkerBatches) and not batches.driver.wants_receipts
        self.asking = threading.RLock()
        """Held by whoever asks the iteration for a batch."""
        self.lock = threading.Lock()
        """Held while `items` are changed and by whoever goes by what is in there."""
        self._there_is_room: queue.SimpleQueue[None] = queue.SimpleQueue()
        """What threads wait for."""
        self._is_ready: queue.SimpleQueue[None] = queue.SimpleQueue()
        """What the training loop waits for."""
        self.items: dict[int, list[Any]] = {}
        """Batches that are ready, by number: what each is, itself, the progress of the epoch after it, and what was
        measured of it."""
        self.unready: list[Any] | None = None
        """The one that the training loop itself gets ready, also if that was interrupted."""
        self.unbegun: dict[int, list[Any]] = {}
        """Those that the training loop has asked for, and that threads are to begin."""
        self.asked = 0
        """Batches that were asked for."""
        self.taken = 0
        """Those that the training loop has."""
        self.halted: list[Any] | None = None
        """An end or an error, after which nobody asks for more before the training loop has got it."""
        self.pauses = 0
        """How many want that no thread asks."""
        self.stopping = False
        self._begin_epoch()

    @property
    def thread_count(self) -> int:
        """How many threads get batches ready; 0 if the training loop does."""
        return self.target.threads if self._runs_ahead else 0

    @property
    def progress(self) -> Progress:
        """What the state of the loader tells."""
        progress: Progress = self.batches.checkpoint.entry.progress
        return progress

    def _begin_epoch(self) -> None:
        """Note where the epoch begins, of which nothing was asked for."""
        self.progress.become(self._progress_now())

    def _progress_now(self) -> Progress:
        """Return how far the epoch is, and with it the account of faults."""
        progress = self.batches.progress.copy()
        progress.faults = self._fault_budget.mark()
        return progress

    def drop(self) -> None:
        """Forget what was got ready."""
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

    def fetch(self) -> list[Any]:
        """Return the next batch, and get those ready that nobody has to wait for."""
        self.items.pop(self.taken - 1, None)
        if self.taken == self.asked:
            self.ask()
        while self._has_space() and self.batches.is_ready():
            self.ask()
        return self.items[self.taken]

    def is_begun_by_loop(self) -> bool:
        """True if the next batch is the first of an epoch: the loader may be told another one until it is asked for."""
        return self.batches.at_first is not None or self.unready is not None

    def is_asked_by_loop(self) -> bool:
        """True if the user's own sampler is asked for every batch."""
        plan = self.batches.checkpoint.plan
        return plan is not None and plan.asks_user

    def ask_for_threads(self) -> None:
        """Take the next batch, and those that nobody has to wait for, and let threads begin them."""
        while self.taken == self.asked or (self._has_space() and self.batches.is_ready()):
            item = self.unready = _asked()
            self._take(item)
            number = self.asked
            # Nothing is called in between, so that no interrupt loses the batch, or has it begun twice.
            self.unbegun[number], self.unready, self.asked = item, None, number + 1

    def wait(self) -> list[Any]:
        """Return the next batch when it is ready."""
        self.items.pop(self.taken - 1, None)
        self.wake()  # there is room for another one
        while self.taken not in self.items:
            if self.stopping:
                raise StopIteration
            _wait(self._is_ready)
        return self.items[self.taken]

    def resume(self, item: list[Any]) -> None:
        """Let somebody ask for more: an error is about to be raised."""
        if self.halted is item:
            self.halted = None
        self.wake()

    def wake(self) -> None:
        """Have whoever waits look again."""
        for waiting, count in ((self._there_is_room, self.thread_count), (self._is_ready, 1)):
            while waiting.qsize() < count:
                waiting.put(None)

    # -- in whichever thread gets batches ready ----------------------------------------------------------------------

    def ask(self) -> None:
        """Get another batch ready, or the same as before if that was interrupted."""
        item = self.unready = self.unready or _asked()
        self._take(item)
        self._begin(item)
        self.items[self.asked], self.unready = item, None
        self.asked += 1

    def work(self) -> bool:
        """Get another batch ready, as one of several threads, when there is room for it; False at the end."""
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
            if number >= self.taken:  # otherwise another epoch has begun
                self.items[number] = item
        self.wake()
        return True

    def _is_wanted(self) -> bool:
        by_loop = self.is_begun_by_loop() or self.is_asked_by_loop()
        return not self.pauses and not by_loop and self._has_space()

    def _has_space(self) -> bool:
        ahead = self.target.ahead if self._runs_ahead else 0
        return self.asked - self.taken <= ahead and self.halted is None

    def _take(self, item: list[Any], *, in_thread: bool = False) -> None:
        try:
            if item[0] is _ASKED:
                item[1] = self.batches.__next__()
                item[0] = _TAKEN  # nothing is called in between, so that no interrupt loses the batch
                item[3] = self.batches.row_parts
        except StopIteration:
            item[0], self.halted = _END, item
        except BaseException as exc:
            if is_interrupt(exc) and not in_thread:
                raise
            item[0], item[1], self.halted = _ERROR, exc, item
        if item[2] is None:
            item[2] = self._progress_now()

    def _begin(self, item: list[Any], *, in_thread: bool = False) -> None:
        if item[0] is not _TAKEN:
            return
        try:
            item[1] = self.target.begin(item[1])
            item[0] = _BATCH
            item[3] = None if item[3] is None else (item[3], time.monotonic_ns())
        except BaseException as exc:
            if is_interrupt(exc) and not in_thread:
                raise
            item[0], item[1] = _ERROR, exc


def _asked() -> list[Any]:
    return [_ASKED, None, None, None]


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
        return  # a copy: threads and device are those of the process that this one was forked from
    if threads:
        line.batches.close()
    line.wake()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
    line.items.clear()
    line.target.close()
