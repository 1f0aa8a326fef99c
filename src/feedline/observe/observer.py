"""What a loader measures while it runs: every batch, or some of them where batches are very short.

Writing a row takes some microseconds, with its share of the adding up. So rows are written about every `_APART_NS`: of
batches that come faster, one in so many, which then stands for those before it; `weight` says for how many, and no row
stands for more time than has passed. The first batches of an epoch, and all that are recorded, have a row each.

Whoever delivers batches looks at `due` and `got` only, which costs nothing, and calls `write` before it notes that the
batch is delivered: nothing may be called afterwards (see `feedline.driver.exclusive`). `stats()` may be called by any
thread meanwhile.
"""

from __future__ import annotations

import copy
import heapq
import os
import threading
import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from feedline.observe.batch_rows import COLUMNS, MOMENTS, NEAR, Row, Totals, columns_of, settle_behind
from feedline.observe.recording import EpochSpan, Recording
from feedline.observe.stats import SlowSample
from feedline.types import Told

_APART_NS = 500_000
"""Rows are at least so far apart, on average: what they cost is then below 1 %."""
_EXACT = 32
"""So many batches of an epoch have a row each, however short they are."""
_MOST = 64
_BLOCK = 1000
"""Rows that are added up at once."""
_SLOWEST = 10
_NEVER = 1 << 62


@dataclass
class _Kept:
    """What a recording needs besides the sums."""

    origin: int
    started: float
    blocks: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)
    rows: int = 0
    """In the blocks."""
    epochs: list[EpochSpan] = field(default_factory=list)
    stages: dict[str, list[list[int]]] = field(default_factory=dict)
    slow: list[SlowSample] = field(default_factory=list)


class Observer:
    """Rows of one loader's batches, and what they add up to.

    Args:
        in_order: False if batches are delivered as they come.
        off: True to measure nothing; for comparisons.
    """

    def __init__(self, *, in_order: bool = True, off: bool = False) -> None:
        self._in_order = in_order
        self.off = off or bool(os.environ.get("FEEDLINE_ACCOUNTING_OFF"))
        self.due = _NEVER
        """After how many batches to set `got` to the time, so that the next one has a row."""
        self.got = 0
        """When the last batch was delivered, if the next one is to have a row, else 0; -1 if there was none."""
        self._rows: list[Row] = []
        self._named: list[tuple[int, str, int]] = []
        """Stages that users have named: the number of the row, the stage, its time."""
        self._lock = threading.Lock()
        """For whoever adds up, or reads what was added up."""
        self._epoch = Totals()
        self._last: Totals | None = None
        self._past = Totals()
        """Of all epochs before this one."""
        self._number = 0
        self.is_under_way = False
        """True from the beginning of an epoch to its end."""
        self._first = 0
        """Batches that there were before this epoch."""
        self._seen = 0
        """Batches that the rows stand for."""
        self._seen_at = 0
        self._slowest: list[tuple[int, int, SlowSample]] = []
        self._told = 0
        self._kept: _Kept | None = None

    # -- by whoever delivers batches ---------------------------------------------------------------------------------

    def begin(self, epoch: int, begun: int, batches: int) -> None:
        """Begin an epoch; what `iter(loader)` took until now counts as waiting.

        Args:
            epoch: its number.
            begun: when `iter(loader)` was called.
            batches: how many were delivered before.
        """
        if self.off:
            return
        now = time.monotonic_ns()
        with self._lock:
            self._fold()
            if self._epoch.batches:
                self._past.merge(self._epoch)
                self._last = self._epoch
            self._epoch = Totals(begun)
            self._epoch.open(now - begun)
            self._number, self._first = epoch, batches
            self._seen, self._seen_at = batches, now
            self.due, self.got = 0, -1
            self.is_under_way = True
            kept = self._kept
            if kept is not None:
                kept.epochs.append(EpochSpan(epoch, begun - kept.origin, now - begun, kept.rows))

    def end(self, batches: int, asked: int) -> None:
        """Note that an epoch is over, and since when that was waited for: workers may have had to end."""
        if not self.is_under_way:
            return
        now = time.monotonic_ns()
        with self._lock:
            self._fold()
            self._epoch.batches = max(self._epoch.batches, batches - self._first)
            self._epoch.end(asked, now)
            self.is_under_way = False
            self.due, self.got = _NEVER, 0
            kept = self._kept
            if kept is not None and kept.epochs:
                kept.epochs[-1] = replace(kept.epochs[-1], asked=asked - kept.origin, ended=now - kept.origin)

    def write(self, facts: Row, asked: int, got: int, more: Row, batches: int) -> None:
        """Write the row of a batch that is about to be delivered.

        Args:
            facts: its columns up to "came", from "ordinal" on.
            asked: when it was asked for.
            got: when it is delivered.
            more: its columns from "behind" to "first".
            batches: how many are delivered with it.
        """
        known = self.got
        body = asked - known if known > 0 else -1
        count, passed = batches - self._seen, got - self._seen_at
        weight = 1
        if not known:  # it took so long that it has a row out of turn: others do not stand for it
            self._seen += 1
            self._seen_at += got - asked
        else:
            if count > 1 and self._kept is None:
                weight = max(1, min(count, passed // max(1, got - asked + max(body, 0))))
            self._seen, self._seen_at, self.got = batches, got, got
            if passed < _APART_NS * count and self._kept is None and batches - self._first >= _EXACT:
                self.got = 0
                self.due = batches + min(_MOST, _APART_NS * count // max(passed, 1)) - 1
        self._rows.append((self._number, *facts, asked, got, *more, body, weight))
        if len(self._rows) >= _BLOCK:
            with self._lock:
                self._fold(keep=NEAR)

    def hear(self, told: Told, worker: int) -> None:
        """Take note of what was told with a batch, just before its row is written."""
        number = len(self._rows)
        self._named.extend((number, name, spent) for name, spent in told.stages.items())
        for spent, index in told.slow:
            self._told += 1  # no two are equal: samples need not be comparable
            slow = (spent, self._told, SlowSample(index, spent / 1e9, worker))
            change = heapq.heappush if len(self._slowest) < _SLOWEST else heapq.heappushpop
            change(self._slowest, slow)

    # -- by anybody --------------------------------------------------------------------------------------------------

    def totals(self, batches: int) -> tuple[Totals, Totals | None, Totals]:
        """Return what this epoch, the last one and all of them have added up to.

        Args:
            batches: how many were delivered so far.
        """
        with self._lock:
            epoch = copy.deepcopy(self._epoch)
            self._fold(epoch)
            total = copy.deepcopy(self._past)
        epoch.batches = max(epoch.batches, batches - self._first)
        total.merge(epoch)
        return epoch, self._last, total

    def slowest(self) -> tuple[SlowSample, ...]:
        """Return the samples that took longest, the slowest first."""
        return tuple(slow for _, _, slow in sorted(self._slowest, reverse=True))

    def record(self) -> None:
        """Keep every row from now on."""
        with self._lock:
            self._fold()
            kept = self._kept = _Kept(time.monotonic_ns(), time.time())
            if self.is_under_way:
                kept.epochs.append(EpochSpan(self._number, 0, 0, 0))
                self.due = 0

    @property
    def is_recording(self) -> bool:
        """True from `record` to `recorded`."""
        return self._kept is not None

    def recorded(self) -> Recording:
        """Return what was recorded, and keep no more."""
        with self._lock:
            self._fold()
            kept, self._kept = self._kept, None
        assert kept is not None
        blocks = kept.blocks or [columns_of([])]
        rows = {name: np.concatenate([block[name] for block in blocks]) for name in COLUMNS}
        for name in MOMENTS:
            rows[name] = np.where(rows[name] != 0, rows[name] - kept.origin, 0)
        recording = Recording(started=kept.started, epochs=kept.epochs, rows=rows, stages=kept.stages)
        recording.slow_samples = list(self.slowest())
        return recording

    # -- adding up; the lock is held ---------------------------------------------------------------------------------

    def _fold(self, into: Totals | None = None, *, keep: int = 0) -> None:
        """Add rows up, but for the last `keep`, and forget them; or add all of them up in `into`, and forget none."""
        rows, named = self._rows[:], self._named
        columns = columns_of(rows)
        settle_behind(columns)
        count = len(rows) - keep if into is None else len(rows)
        if count <= 0:
            return
        columns = {name: column[:count] for name, column in columns.items()}
        totals = self._epoch if into is None else into
        totals.fold(columns, in_order=self._in_order)
        for number, name, spent in named:
            if number < count:
                totals.add_stage(name, spent)
        if into is not None:
            return
        del self._rows[:count]  # and not those that another thread writes meanwhile
        self._named = [(number - count, name, spent) for number, name, spent in named if number >= count]
        kept = self._kept
        if kept is not None:
            for number, name, spent in named:
                if number < count:
                    kept.stages.setdefault(name, []).append([kept.rows + number, spent])
            kept.blocks.append(columns)
            kept.rows += count
