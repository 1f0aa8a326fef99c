"""The live view: a line about each running loader on standard error, every few seconds.

A separate thread writes, because the figures matter most while the training loop waits inside `next()`. It refers to no
loader, since dropping a loader must end its workers, and takes no lock that a forked process could find taken: it reads
the loader's observer, and writes to the descriptor, not to the stream.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.insight.batch_rows import Totals
from feedline.loader.resources import Resources
from feedline.system.ranks import share_if_known
from feedline.system.shown import printable

_EVERY_S = 5.0


class Shown(Protocol):
    """What is shown of a loader: its session."""

    view: LiveView | None
    shows_epochs: bool
    fault_budget: FaultBudget
    resources: Resources


class LiveView:
    """Writes a line about one loader every few seconds, until `close` is called or the loader is gone.

    Args:
        name: the name of the loader in each line.
        session: the loader's session.
        is_for_epoch: True to stop at the end of an epoch.
    """

    def __init__(self, name: str, session: Shown, *, is_for_epoch: bool = False) -> None:
        self._name = name
        self._is_for_epoch = is_for_epoch
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._silent_since = time.monotonic_ns()
        self.follow(session)
        self._last = self._read()
        weakref.finalize(session, self._ended.set).atexit = False
        self._thread = threading.Thread(target=self._run, name="feedline-live", daemon=True)
        self._thread.start()

    def follow(self, session: Shown) -> None:
        """Read the loader's current measurements, which a change of its arguments replaces."""
        resources = session.resources
        self._counters, self._worker_count = resources.counters, resources.worker_count
        self._faults = session.fault_budget.log

    @property
    def is_running(self) -> bool:
        """True if the view still writes; a forked process has no thread that does."""
        return self._thread.is_alive() and self._pid == os.getpid()

    def close(self) -> None:
        """Stop writing. May be called twice."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            write(f"feedline: {self.line()}\n")
            if self._is_for_epoch and not self._counters.observer.is_under_way:
                return

    def _read(self) -> tuple[int, Totals]:
        counters = self._counters
        return time.monotonic_ns(), counters.observer.totals(counters.batches)[2]

    def line(self) -> str:
        """Return the figures since the last line."""
        (begun, before), (now, total) = self._last, self._read()
        self._last = now, total
        if total.batches < before.batches:  # the loader's arguments have changed
            before = Totals()
        passed = max(1, now - begun)
        batches = total.batches - before.batches
        parts = [f"{batches * 1e9 / passed:,.1f} batches/s"]
        parts.append(f"{(total.samples - before.samples) * 1e9 / passed:,.0f} samples/s")
        if batches:
            self._silent_since = now
            elapsed = total.nanoseconds - before.nanoseconds
            waited = total.opened + total.waited - before.opened - before.waited
            parts.append(f"waited {100 * _share(waited, elapsed):.0f} %")
        else:
            parts = [f"no batch for {(now - self._silent_since) / 1e9:.0f} s"]
        spent = {worker: ns - before.busy.get(worker, 0) for worker, ns in total.busy.items()}
        workers = max([self._worker_count, *(worker + 1 for worker in spent)])  # with "auto", some are added
        if workers:
            parts.append(f"{(total.ready - before.ready) / max(1, batches):.1f} ready")
        faults = sum(self._faults.counts().values())
        parts += [f"{faults} faults"] * (faults > 0)
        parts += [f"{self._counters.restarts} workers replaced"] * (self._counters.restarts > 0)
        if workers:
            shares = (_share(spent.get(worker, 0), passed) for worker in range(workers))
            parts.append(f"workers busy {' '.join(f'{100 * share:.0f}' for share in shares)} %")
        return f"{self._name}: {', '.join(parts)}"


def _share(part: int, total: int) -> float:
    return min(1.0, max(0.0, part / total)) if total > 0 else 0.0


def write(text: str) -> None:
    """Write to standard error; do nothing if it was closed."""
    stream = sys.stderr
    try:
        if type(stream) is io.TextIOWrapper:
            # Not by the stream, whose own lock a process that is forked meanwhile could never take.
            data = printable(text).encode(stream.encoding, "replace")
            while data:
                data = data[os.write(stream.fileno(), data) :]
        else:
            stream.write(printable(text))
            stream.flush()
    except (OSError, ValueError):
        return


@contextmanager
def live(name: str, session: Shown) -> Iterator[None]:
    """Show a loader; see `LoaderBase.live`."""
    before, session.view = session.view, LiveView(name, session)
    try:
        yield
    finally:
        session.view.close()
        session.view = before


def show_epoch(name: str, session: Shown) -> None:
    """Show a loader whose epoch begins, on the first rank of a program that shows all its loaders."""
    if session.view is not None and session.view.is_running:
        session.view.follow(session)
    elif session.shows_epochs and multiprocessing.parent_process() is None and not share_if_known().rank:
        session.view = LiveView(name, session, is_for_epoch=True)
