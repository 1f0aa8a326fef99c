"""The live view: the progress of loaders, drawn on standard error once a second while they run.

A separate thread draws, because the figures matter most while the training loop waits inside `next()`. It exists only
while a loader is shown. It reads the observers, which any thread may do, and changes nothing in loaders. It draws while
holding a lock that a fork waits for, so that no process is forked while rich holds locks of its own. It writes to the
terminal, which may be stopped for hours, after it has released that lock.
"""

from __future__ import annotations

import atexit
import functools
import io
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

from feedline.delivery.machine.counters import Counters
from feedline.faults.log import FaultLog
from feedline.insight.batch_rows import Totals
from feedline.loader.arguments import LIVE
from feedline.system.screen import has_rich, plain_console
from feedline.types.ranks import share_if_known
from feedline.types.shown import printable

_EVERY_S = 1.0
_LINES_EVERY = 5
"""Readings per line, if the view writes lines."""
_LOOKS = 6
"""Readings that the figures cover: several, because a batch may take seconds."""
_BARS = 8
"""Up to this many workers have a line each."""
_LEVELS = "▁▂▃▄▅▆▇█"


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
    def words(self) -> str:
        """Everything but the workers, on one line."""
        parts = [f"{self.batches_per_s:,.1f} batches/s", f"{self.samples_per_s:,.0f} samples/s"]
        if self.stall is None:
            parts = [f"no batch for {self.silent_s:.0f} s"]
        else:
            parts.append(f"waited {100 * self.stall:.0f} %")
        if self.busy:
            parts.append(f"{self.ready:.1f} ready")
        parts += [f"{self.faults} faults"] * (self.faults > 0)
        parts += [f"{self.restarts} workers replaced"] * (self.restarts > 0)
        return f"{self.name}: {', '.join(parts)}"

    @property
    def line(self) -> str:
        """Everything on one line."""
        shares = " ".join(f"{100 * share:.0f}" for share in self.busy)
        return f"{self.words}, workers busy {shares} %" if self.busy else self.words

    def bars(self) -> list[str]:
        """Return the workers as bars, or as one line if there are many."""
        if len(self.busy) > _BARS:
            levels = "".join(_LEVELS[min(7, int(8 * share))] for share in self.busy)
            return [f"  workers {levels} {100 * sum(self.busy) / len(self.busy):.0f} %"]
        full = [round(20 * share) for share in self.busy]
        return [
            f"  worker {number} {'█' * length}{'░' * (20 - length)} {100 * share:3.0f} %"
            for number, (share, length) in enumerate(zip(self.busy, full, strict=True))
        ]


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


class _Screen:
    """The stream of a view. What the view draws is kept, and written once the view's lock is free.

    Other threads write at once: rich sends the program's own output through here.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._drawing: int | None = None
        """The thread that is drawing."""
        self._drawn: list[str] = []

    # Any: what rich asks a stream for.
    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if self._drawing != threading.get_ident():
            return self._stream.write(text)
        self._drawn.append(text)
        return len(text)

    def flush(self) -> None:
        if self._drawing != threading.get_ident():
            self._stream.flush()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Keep what this thread writes inside the context."""
        self._drawing = threading.get_ident()
        try:
            yield
        finally:
            self._drawing = None

    def show(self) -> None:
        """Write what was drawn."""
        text, self._drawn = "".join(self._drawn), []
        if text and type(self._stream) is io.TextIOWrapper and hasattr(os, "fork"):
            # Not by the stream, whose own lock a process that is forked meanwhile could never take.
            data = text.encode(self._stream.encoding, "replace")
            while data:
                data = data[os.write(self._stream.fileno(), data) :]
        elif text:
            self._stream.write(text)
            self._stream.flush()


class LiveView:
    """Draws loaders: in place with rich if the stream is a terminal, else one line each every few seconds.

    Args:
        stream: where to draw.
        in_place: False to write lines, True to draw in place, None to decide by the stream.
    """

    def __init__(self, stream: TextIO, *, in_place: bool | None = None) -> None:
        self._stream = stream
        self._screen = _Screen(stream)
        self._in_place = stream.isatty() and has_rich() if in_place is None else in_place
        self._shown: list[_Shown] = []
        self._looks = 0
        self._display: Any = None  # a `rich.live.Live`
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, loader: _Loader, counters: Counters, worker_count: int, *, is_asked_for: bool = False) -> None:
        """Show a loader from now on, if it is not shown yet."""
        with self.lock:
            shown = self._find(loader)
            if shown is None:
                shown = _Shown(id(loader), _name_of(loader))
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
        with self.lock:
            self._clear()
        self._write()

    def _work(self, ending: threading.Event) -> None:
        is_over = False
        while not (is_over or ending.wait(_EVERY_S)):
            with self.lock:
                self.draw(time.monotonic_ns())
                is_over = not self._shown and self._thread is threading.current_thread()
                if is_over:
                    self._thread = None
                    self._clear()
            self._write()

    def draw(self, now: int) -> None:
        """Draw the current figures, and remove loaders that are over. The caller holds the lock."""
        looked = [shown.look(now) for shown in self._shown]
        self._shown = [shown for shown in self._shown if not shown.is_over]
        figures = [one for one in looked if one is not None]
        self._looks += 1
        with self._screen.drawing():
            if self._in_place:
                self._draw_in_place(figures)
            elif self._looks % _LINES_EVERY == 0 and figures:
                self._screen.write("".join(printable(f"feedline: {one.line}\n") for one in figures))

    def _write(self) -> None:
        """Write what was drawn. Nobody holds the lock: a stopped terminal keeps only this thread waiting."""
        try:
            self._screen.show()
        except (OSError, ValueError):  # the terminal is gone or the stream is closed
            with self.lock:
                self._shown.clear()

    def _draw_in_place(self, figures: list[Figures]) -> None:
        from rich.live import Live
        from rich.text import Text

        if self._display is None:
            # The program's own output goes above the view, unless it goes elsewhere.
            self._display = Live(
                console=plain_console(file=self._screen),
                auto_refresh=False,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=sys.stderr is self._stream,
            )
            self._display.start()
        text = Text(no_wrap=True, overflow="ellipsis")
        for one in figures:
            style = "" if one.stall is None or one.stall < 0.05 else "yellow" if one.stall < 0.3 else "red"
            text.append(printable(one.words) + "\n", style)
            text.append("".join(f"{bar}\n" for bar in one.bars()))
        text.rstrip()
        self._display.update(text, refresh=True)

    def _clear(self) -> None:
        display, self._display = self._display, None
        if display is not None:
            with self._screen.drawing(), suppress(OSError, ValueError):  # see _write
                display.stop()

    def leave_to_parent(self) -> None:
        """Restore the original streams, in a process that was forked from this one."""
        display, self._display = self._display, None
        if display is not None:
            display._disable_redirect_io()


_views: dict[int, LiveView] = {}
"""By process id: a forked process has none."""
_held: list[LiveView] = []
"""Views whose lock is held during a fork, so that none of them draws."""


def _view() -> LiveView:
    pid = os.getpid()
    if pid not in _views:
        in_place = False if os.environ.get(LIVE) == "lines" else None
        _views[pid] = LiveView(sys.stderr, in_place=in_place)
        atexit.register(_views[pid].close)
        _register_fork_hooks()
    return _views[pid]


@functools.cache
def _register_fork_hooks() -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_leave_to_parent)


def _hold() -> None:
    for view in list(_views.values()):
        view.lock.acquire()
        _held.append(view)


def _let_go() -> None:
    while _held:
        _held.pop().lock.release()


def _leave_to_parent() -> None:
    for view in _views.values():
        view.leave_to_parent()
    _held.clear()
    _views.clear()


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
    if is_asked_for or (_views and _view().shows(loader)):
        _view().add(loader, counters, worker_count)


def _name_of(loader: _Loader) -> str:
    return type(loader.dataset).__name__
