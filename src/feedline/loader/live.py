"""The live view: the progress of loaders, a line for each every few seconds on standard error while they run.

A separate thread writes, because the figures matter most while the training loop waits inside `next()`. It exists only
while a loader is shown. It reads the observers, which any thread may do, and changes nothing in loaders. It writes to
the terminal, which may be stopped for hours, after it has released its lock.
"""

from __future__ import annotations

import atexit
import io
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from feedline.delivery.machine.counters import Counters
from feedline.faults.log import FaultLog
from feedline.insight.batch_rows import Totals
from feedline.system.ranks import share_if_known
from feedline.system.shown import printable

_EVERY_S = 1.0
_LINES_EVERY = 5
"""Readings per line."""
_LOOKS = 6
"""Readings that the figures cover: several, because a batch may take seconds."""


@dataclass(frozen=True)
class Figures:
    """A loader's figures for the last seconds."""

    name: str
    batches_per_s: float
    samples_per_s: float
    stall: float | None
    """The share of the time in which the training loop waited; None if it got no batch."""
    busy: list[float]
    """The share of the time in which each worker made batches."""
    ready: float
    """Batches that were ready when the training loop requested one."""
    faults: int
    restarts: int
    silent_s: float
    """How long no batch has been delivered."""

    @property
    def line(self) -> str:
        """Everything on one line."""
        parts = [f"{self.batches_per_s:,.1f} batches/s", f"{self.samples_per_s:,.0f} samples/s"]
        if self.stall is None:
            parts = [f"no batch for {self.silent_s:.0f} s"]
        else:
            parts.append(f"waited {100 * self.stall:.0f} %")
        if self.busy:
            parts.append(f"{self.ready:.1f} ready")
        parts += [f"{self.faults} faults"] * (self.faults > 0)
        parts += [f"{self.restarts} workers replaced"] * (self.restarts > 0)
        if self.busy:
            parts.append(f"workers busy {' '.join(f'{100 * share:.0f}' for share in self.busy)} %")
        return f"{self.name}: {', '.join(parts)}"


@dataclass
class _Shown:
    """A loader that is shown. This holds no reference to the loader, because dropping a loader must end its workers."""

    key: int
    name: str
    is_asked_for: bool = False
    """True for `loader.live()`: shown until that context ends, not only until the loader's epoch is over."""
    counters: Counters = field(default_factory=Counters)
    faults: FaultLog = field(default_factory=FaultLog)
    worker_count: int = 0
    looks: deque[tuple[int, Totals]] = field(default_factory=lambda: deque(maxlen=_LOOKS))
    is_gone: bool = False
    loader: weakref.ref[object] | None = None
    """Only for its callback when the loader is gone; never dereferenced."""

    def update(self, counters: Counters, worker_count: int, faults: FaultLog) -> None:
        """Use the loader's current counters: a change of its settings replaces the counters."""
        if counters is not self.counters:
            self.looks.clear()
        self.counters, self.worker_count, self.faults = counters, worker_count, faults

    def look(self, now: int) -> Figures | None:
        """Return the current figures; None if there are none yet."""
        counters = self.counters
        self.looks.append((now, counters.observer.totals(counters.batches)[2]))
        faults = sum(self.faults.counts().values())
        return figures_of(self.name, self.looks, workers=self.worker_count, faults=faults, restarts=counters.restarts)

    def end(self, _: object) -> None:
        """Mark the loader as gone."""
        self.is_gone = True

    @property
    def is_over(self) -> bool:
        return self.is_gone or not (self.is_asked_for or self.counters.observer.is_under_way)


def figures_of(
    name: str, looks: deque[tuple[int, Totals]], *, workers: int, faults: int = 0, restarts: int = 0
) -> Figures | None:
    """Return the figures between the first reading and the last; None if there was only one."""
    (begun, before), (now, total) = looks[0], looks[-1]
    passed = now - begun
    if passed <= 0:
        return None
    batches = total.batches - before.batches
    elapsed = total.nanoseconds - before.nanoseconds
    waited = total.opened + total.waited - before.opened - before.waited
    last = next((at for at, then in looks if then.batches == total.batches), now)
    spent = {worker: ns - before.busy.get(worker, 0) for worker, ns in total.busy.items()}
    workers = max([workers, *(worker + 1 for worker, ns in spent.items() if ns > 0)])  # with "auto", some are added
    busy = (spent.get(worker, 0) for worker in range(workers))
    return Figures(
        name=name,
        batches_per_s=batches * 1e9 / passed,
        samples_per_s=(total.samples - before.samples) * 1e9 / passed,
        stall=min(1.0, max(0.0, waited / elapsed)) if batches > 0 and elapsed > 0 else None,
        busy=[min(1.0, max(0.0, ns / passed)) for ns in busy],
        ready=(total.ready - before.ready) / batches if batches > 0 else 0.0,
        faults=faults,
        restarts=restarts,
        silent_s=(now - last) / 1e9,
    )


class _Loader(Protocol):
    @property
    def dataset(self) -> object: ...

    @property
    def faults(self) -> FaultLog: ...


class LiveView:
    """Writes a line for each loader every few seconds.

    Args:
        stream: where to write.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: list[_Shown] = []
        self._looks = 0
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, loader: _Loader, counters: Counters, worker_count: int, *, is_asked_for: bool = False) -> None:
        """Show a loader from now on, if it is not shown yet."""
        with self.lock:
            shown = self._find(loader)
            if shown is None:
                shown = _Shown(id(loader), type(loader.dataset).__name__)
                shown.loader = weakref.ref(loader, shown.end)
                self._shown.append(shown)
            shown.is_asked_for |= is_asked_for
            shown.update(counters, worker_count, loader.faults)
            if self._thread is None:
                self._ending = threading.Event()
                work = threading.Thread(target=self._work, args=(self._ending,), name="feedline-live", daemon=True)
                self._thread = work
                work.start()

    def shows(self, loader: object) -> bool:
        """True if a loader is shown."""
        with self.lock:
            return self._find(loader) is not None

    def remove(self, loader: object) -> None:
        """Stop showing a loader."""
        with self.lock:
            self._shown = [shown for shown in self._shown if shown.key != id(loader)]
            is_last = not self._shown
        if is_last:
            self.close()

    def _find(self, loader: object) -> _Shown | None:
        return next((one for one in self._shown if one.key == id(loader) and not one.is_gone), None)

    def close(self) -> None:
        """Stop showing loaders, and end the thread. May be called twice."""
        if self._pid != os.getpid():  # in a forked process, where there is no thread
            return
        with self.lock:
            self._shown.clear()
            thread, self._thread = self._thread, None
            self._ending.set()
        if thread is not None:
            thread.join()

    def _work(self, ending: threading.Event) -> None:
        is_over = False
        while not (is_over or ending.wait(_EVERY_S)):
            with self.lock:
                text = self.lines(time.monotonic_ns())
                is_over = not self._shown and self._thread is threading.current_thread()
                if is_over:
                    self._thread = None
            self._write(text)

    def lines(self, now: int) -> str:
        """Return what to write now, and remove loaders that are over. The caller holds the lock."""
        looked = [shown.look(now) for shown in self._shown]
        self._shown = [shown for shown in self._shown if not shown.is_over]
        self._looks += 1
        if self._looks % _LINES_EVERY:
            return ""
        return "".join(printable(f"feedline: {one.line}\n") for one in looked if one is not None)

    def _write(self, text: str) -> None:
        """Write lines. Nobody holds the lock: a stopped terminal keeps only this thread waiting."""
        stream = self._stream
        try:
            if text and type(stream) is io.TextIOWrapper and hasattr(os, "fork"):
                # Not by the stream, whose own lock a process that is forked meanwhile could never take.
                data = text.encode(stream.encoding, "replace")
                while data:
                    data = data[os.write(stream.fileno(), data) :]
            elif text:
                stream.write(text)
                stream.flush()
        except (OSError, ValueError):  # the terminal is gone or the stream is closed
            with self.lock:
                self._shown.clear()


_views: dict[int, LiveView] = {}
"""By process id: a forked process has none."""


def _view() -> LiveView:
    pid = os.getpid()
    if pid not in _views:
        _views[pid] = LiveView(sys.stderr)
        atexit.register(_views[pid].close)
    return _views[pid]


@contextmanager
def live(loader: _Loader, counters: Counters, worker_count: int) -> Iterator[None]:
    """Show a loader; see `LoaderBase.live`."""
    view = _view()
    view.add(loader, counters, worker_count, is_asked_for=True)
    try:
        yield
    finally:
        view.remove(loader)


def begins(loader: _Loader, counters: Counters, worker_count: int, *, is_asked_for: bool = False) -> None:
    """Show a loader that starts an iteration, if it is shown already or `is_asked_for` (only on rank 0)."""
    if is_asked_for and (multiprocessing.parent_process() is not None or share_if_known().rank):
        is_asked_for = False
    if is_asked_for or (os.getpid() in _views and _view().shows(loader)):
        _view().add(loader, counters, worker_count)
