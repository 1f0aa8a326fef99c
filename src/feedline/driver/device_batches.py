"""Batches that are got ready for a device ahead of time.

An iteration is asked for batches before the training loop does so, a `Target` begins what is to be done about each
(copy it, decode it, transform it), and they are handed over in order. Where that costs the processor next to nothing
it is done by the training loop itself, in `next()`; otherwise by threads.

The state of a loader is about the batches that the training loop has got. So the epoch notes its progress in a copy,
and with each batch it is kept how far that was; when the batch is handed over, the checkpoint is told.

Threads live as long as the iteration. They do not hold it, so that dropping the iterator ends them; at the end of the
program they are waited for, because a thread that is ended inside of CUDA takes the program down with it.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from feedline.abc.target import Target
from feedline.driver.batches import WorkerBatches
from feedline.driver.exclusive import ExclusiveBatches
from feedline.driver.inline_batches import InlineBatches
from feedline.engines import interrupts
from feedline.failures import is_interrupt
from feedline.order.progress import Progress

_LOOK_UP_S = 0.05
"""How often somebody who waits looks whether anybody wants it to end. Nothing else depends on it."""

_BATCH, _ERROR, _END = range(3)


class DeviceBatches(ExclusiveBatches):
    """The batches of an iteration, on a device.

    Args:
        batches: where they come from.
        target: what is done about them.
    """

    def __init__(self, batches: InlineBatches | WorkerBatches, target: Target) -> None:
        super().__init__()
        self._batches = batches
        self._target = target
        self._line = line = _Line(batches, target)
        self._threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, interrupts.see_through, functools.partial(_end, line, self._threads))

    def begin(self) -> None:
        """Begin another epoch of the same iteration: what was got ready is dropped."""
        self._line.drop()

    @contextmanager
    def still(self) -> Iterator[None]:
        """Let no thread ask for a batch meanwhile; one that waits for a batch is waited for."""
        with self._line.asking:
            yield

    def _next(self) -> Any:
        line = self._line
        if self.leaving:
            raise StopIteration
        if self._threads:
            item = line.wait()
        else:
            item = line.fetch()
            if line.thread_count:  # what the target has seen by now keeps a processor busy
                self._start()
        kind, value, noted = item
        if kind is _END:
            line.note_all()
            raise StopIteration
        if kind is _ERROR:
            line.resume(item)
            _note(line.progress, noted)
            line.taken += 1
            raise value
        batch = self._target.deliver(value)
        progress = line.progress
        # From here on nothing is called, so that no signal comes between: see `feedline.driver.exclusive`.
        item[1] = None
        if noted is not None and progress is not None:
            progress.delivered, progress.early, progress.notes = noted.delivered, noted.early, noted.notes
            progress.streams, progress.turn, progress.read = noted.streams, noted.turn, noted.read
            progress.missing = noted.missing
        line.taken += 1
        return batch

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

    def __init__(self, batches: InlineBatches | WorkerBatches, target: Target) -> None:
        self.batches = batches
        self.target = target
        # Batches that the training loop makes itself are made when it asks. Sources that hear which samples were
        # consumed hear it when the next one is asked for.
        self._runs_ahead = isinstance(batches, WorkerBatches) and not batches.driver.wants_receipts
        self.asking = threading.RLock()
        """Held by whoever asks the iteration for a batch."""
        self.changed = threading.Condition()
        self.items: dict[int, list[Any]] = {}
        """Batches that are ready, by number: what each is, itself, and the progress of the epoch after it."""
        self.asked = 0
        """Batches that were asked for."""
        self.taken = 0
        """Those that the training loop has."""
        self.halted: list[Any] | None = None
        """An end or an error, after which nobody asks for more before the training loop has got it."""
        self.stopping = False

    @property
    def thread_count(self) -> int:
        """How many threads get batches ready; 0 if the training loop does."""
        return self.target.threads if self._runs_ahead else 0

    @property
    def progress(self) -> Progress | None:
        """What the state of the loader tells; None if the iteration keeps it itself."""
        if not isinstance(self.batches, WorkerBatches):
            return None
        progress: Progress = self.batches.driver.epoch.checkpoint.entry.progress
        return progress

    def drop(self) -> None:
        """Forget what was got ready."""
        with self.asking, self.changed:
            self.items.clear()
            self.taken = self.asked
            self.halted = None
            self.changed.notify_all()

    # -- in the training loop -----------------------------------------------------------------------------------------

    def fetch(self) -> list[Any]:
        """Return the next batch, and get those ready that nobody has to wait for."""
        self.items.pop(self.taken - 1, None)
        if self.taken not in self.items:
            self.ask()
        while self._has_room() and self.batches.is_ready():
            self.ask()
        return self.items[self.taken]

    def wait(self) -> list[Any]:
        """Return the next batch when it is ready."""
        with self.changed:
            self.items.pop(self.taken - 1, None)
            self.changed.notify()  # there is room for another one
            while self.taken not in self.items:
                if self.stopping:
                    raise StopIteration
                self.changed.wait(_LOOK_UP_S)
            return self.items[self.taken]

    def resume(self, item: list[Any]) -> None:
        """Let somebody ask for more: an error is about to be raised."""
        with self.changed:
            if self.halted is item:
                self.halted = None
            self.changed.notify()

    def note_all(self) -> None:
        """The training loop has got all batches."""
        if isinstance(self.batches, WorkerBatches):
            _note(self.progress, self.batches.driver.epoch.progress)

    # -- in whichever thread gets batches ready ----------------------------------------------------------------------

    def ask(self) -> None:
        """Get another batch ready."""
        number, item = self.asked, self._take()
        self.asked += 1
        self._begin(item)
        self.items[number] = item

    def work(self) -> bool:
        """Get another batch ready, as one of several threads, when there is room for it; False at the end."""
        with self.changed:
            while not self.stopping and not self._has_room():
                self.changed.wait(_LOOK_UP_S)
        with self.asking:
            if self.stopping:
                return False
            if not self._has_room():
                return True  # another thread was faster
            number, item = self.asked, self._take(in_thread=True)
            self.asked += 1
        self._begin(item, in_thread=True)
        with self.changed:
            if number >= self.taken:  # otherwise another epoch has begun
                self.items[number] = item
            self.changed.notify_all()
        return True

    def _has_room(self) -> bool:
        ahead = self.target.ahead if self._runs_ahead else 0
        return self.asked - self.taken <= ahead and self.halted is None

    def _take(self, *, in_thread: bool = False) -> list[Any]:
        try:
            batch = self.batches.__next__()
        except StopIteration:
            item = self.halted = [_END, None, None]
        except BaseException as exc:
            if is_interrupt(exc) and not in_thread:
                raise
            item = self.halted = [_ERROR, exc, self._noted()]
        else:
            item = [_BATCH, batch, self._noted()]
        return item

    def _begin(self, item: list[Any], *, in_thread: bool = False) -> None:
        if item[0] is not _BATCH:
            return
        try:
            item[1] = self.target.begin(item[1])
        except BaseException as exc:
            if is_interrupt(exc) and not in_thread:
                raise
            item[0], item[1] = _ERROR, exc

    def _noted(self) -> Progress | None:
        if not isinstance(self.batches, WorkerBatches):
            return None
        return self.batches.driver.epoch.progress.copy()


def _note(progress: Progress | None, noted: Progress | None) -> None:
    if progress is not None and noted is not None:
        progress.become(noted.copy())


def _work(line: _Line) -> None:
    while line.work():
        pass


def _end(line: _Line, threads: list[threading.Thread]) -> None:
    """End the threads, and wait for them."""
    line.stopping = True
    if threads:
        line.batches.close()
    with line.changed:
        line.changed.notify_all()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()
    line.items.clear()
    line.target.close()
