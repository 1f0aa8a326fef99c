"""What a loader measures while it runs: every batch, or a sample of them when batches are very short.

Writing a row takes some microseconds, including its share of the summation. So for batches that take less than
`_SHORT_NS`, a row is written about every `_APART_NS` and stands for the batches before it. Its `weight` says for how
many, and no row stands for more time than has passed. The first batches of an epoch, and all batches that are recorded,
get a row each. The total wait is exact all the same: the wait of batches without a row is summed up. The rows show what
training waited for.

The code that delivers batches checks `due` and `got`, and calls `write` before it marks the batch as delivered: nothing
may be called afterwards (see `delivery/driver/caller_lock.py`). Any thread may call `stats()` meanwhile.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import time
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from feedline.insight.batch_rows import COLUMNS, MOMENTS, NEAR, Row, Totals, columns_of, settle_order
from feedline.insight.recording import EpochSpan, Recording
from feedline.insight.stats import SlowSample
from feedline.system.references import References
from feedline.types import TaskNotes

_SHORT_NS = 5_000_000
"""Batches that take so long, or longer, have a row each."""
_APART_NS = 40_000_000
"""Rows of shorter ones are so far apart. One costs 15 to 30 us, and a training process that waits for workers on a busy
machine computes for some 4 ms of these 40: that is below 1 %."""
_EXACT = 8
"""So many batches of an epoch have a row each, however short they are."""
_MOST = 1024
"""No row stands for more."""
_BLOCK = 1000
"""Rows that are added up at once."""
_SLOWEST = 10
_NEVER = 1 << 62
_GOT = COLUMNS.index("got")


@dataclass(eq=False)
class Kept:
    """What a recording needs besides the sums."""

    origin: int
    started: float
    most: float
    """Rows that are kept; those that follow are measured as if nobody recorded."""
    blocks: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)
    rows: int = 0
    """In the blocks."""
    epochs: list[EpochSpan] = field(default_factory=list)
    stages: dict[str, list[list[int]]] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """True if it has as many rows as it may have."""
        return self.rows >= self.most

    def add(self, columns: dict[str, NDArray[np.int64]], told: list[tuple[int, str, int]]) -> None:
        """Keep some rows, and the stages that users have named in them."""
        for number, name, spent in told:
            self.stages.setdefault(name, []).append([self.rows + number, spent])
        self.blocks.append(columns)
        self.rows += len(columns["got"])


@dataclass
class _Epoch:
    """What was measured of an epoch."""

    number: int
    before: int
    """Batches that there were before it."""
    totals: Totals
    rows: list[Row] = field(default_factory=list)
    """Those that are not added up yet."""
    named: list[tuple[int, str, int]] = field(default_factory=list)
    """Stages that users have named: the number of the row, the stage, its time."""
    batches: int = 0
    """Of an epoch that is over, or was left: how many there were."""
    rest: tuple[int, int, int] = (0, 0, 0)
    """Of one that was left: what is known of its batches without a row; see `Totals.rest`."""

    def so_far(self, batches: int, rest: tuple[int, int, int], *, in_order: bool) -> Totals:
        """Return what all rows add up to, and forget none."""
        totals = copy.deepcopy(self.totals)
        columns = columns_of(self.rows[:])
        settle_order(columns)
        totals.fold(columns, in_order=in_order)
        for _, name, spent in self.named:
            totals.add_stage(name, spent)
        totals.rest(batches, *rest)
        return totals


class Observer:
    """Rows of one loader's batches, and what they add up to.

    Args:
        in_order: False if batches are delivered as they come.
    """

    is_off = False
    """Measure nothing; for whoever asks what measuring costs."""

    def __init__(self, *, in_order: bool = True) -> None:
        self._in_order = in_order
        self.due = _NEVER
        """After how many batches to set `got` to the time, so that the next one has a row."""
        self.got = 0
        """When the last batch was delivered, if the next one is to have a row, else 0; -1 if there was none."""
        self.waited_s = 0.0
        """How long the training loop waited in this epoch for batches that have no row, and"""
        self.late_s = 0.0
        """how much of that until they had come; 0 without workers."""
        self.last_s = 0.0
        """When the last of them was delivered."""
        self.is_under_way = False
        """True from the beginning of an epoch to its end."""
        self._lock = threading.Lock()
        """For whoever adds up, or reads what was added up."""
        self._epoch = _Epoch(0, 0, Totals())
        self._earlier: list[_Epoch] = []
        """Epochs whose rows are not added up yet; of the last of them, figures may be asked for."""
        self._past = Totals()
        """Of all epochs before those."""
        self._seen = 0
        """Batches that the rows stand for."""
        self._seen_at = 0
        self._slowest: dict[str, SlowSample] = {}
        """By what their indices look like, which need not be hashable."""
        self._kept: list[Kept] = []
        """Recordings that are under way, and not full."""
        self._before_settled: Totals | None = None
        """With "auto": what there was when the number of workers was found; None if it was not."""
        self._settled_at = 0
        _observers.add(self)

    # -- by whoever delivers batches ---------------------------------------------------------------------------------

    def begin(self, epoch: int, begun: int, batches: int) -> None:
        """Begin an epoch; what `iter(loader)` took until now counts as waiting.

        Args:
            epoch: its number.
            begun: when `iter(loader)` was called.
            batches: how many were delivered before.
        """
        if self.is_off:
            return
        with self._lock:
            self._leave(batches)
            now = time.monotonic_ns()
            self._epoch = _Epoch(epoch, batches, Totals(begun))
            self._epoch.totals.open(now - begun)
            self.waited_s = self.late_s = self.last_s = 0.0
            self._seen, self._seen_at = batches, now
            self.due, self.got = 0, -1
            self.is_under_way = True
            for kept in self._kept:
                kept.epochs.append(EpochSpan(epoch, begun - kept.origin, now - begun, kept.rows))

    def end(self, batches: int, asked: int) -> None:
        """Note that an epoch is over, and since when that was waited for: workers may have had to end."""
        if not self.is_under_way:
            return
        now = time.monotonic_ns()
        with self._lock:
            self._epoch.totals.end(asked, now)
            self._epoch.batches = batches - self._epoch.before
            self.is_under_way = False
            self.due, self.got = _NEVER, 0
            for kept in self._kept:
                if kept.epochs:
                    kept.epochs[-1] = replace(kept.epochs[-1], asked=asked - kept.origin, ended=now - kept.origin)

    def write(self, facts: Row, asked: int, got: int, more: Row, batches: int | None) -> None:
        """Write the row of a batch that is about to be delivered.

        Args:
            facts: its columns from "ordinal" to "came".
            asked: when it was asked for.
            got: when it is delivered.
            more: its columns from "behind" to "first".
            batches: how many are delivered with it; None if every batch has a row.
        """
        if batches is None:
            batches = self._seen + 1
        known, epoch = self.got, self._epoch
        body = asked - known if known > 0 else -1
        count, passed = batches - self._seen, got - self._seen_at
        weight = 1
        if not known:  # it took so long that it has a row out of turn: others do not stand for it
            self._seen += 1
            self._seen_at += got - asked
        else:
            if count > 1 and not self._kept:
                weight = max(1, min(count, passed // max(1, got - asked + max(body, 0))))
            self._seen, self._seen_at, self.got = batches, got, got
            if passed < _SHORT_NS * count and not self._kept and batches - epoch.before >= _EXACT:
                self.got = 0
                self.due = batches + min(_MOST, _APART_NS * count // max(passed, 1)) - 1
        epoch.rows.append((epoch.number, *facts, asked, got, *more, body, 0, weight))
        if len(epoch.rows) >= _BLOCK:
            with self._lock:
                self._fold(keep=NEAR)

    def hear(self, told: TaskNotes, worker: int) -> None:
        """Take note of what was told with a batch, just before its row is written."""
        epoch = self._epoch
        number = len(epoch.rows)
        epoch.named.extend((number, name, spent) for name, spent in told.stages.items())
        slowest = self._slowest
        for spent, index in told.slow:
            key = repr(index)
            if key not in slowest or slowest[key].seconds < spent / 1e9:
                slowest[key] = SlowSample(index, spent / 1e9, worker)
            if len(slowest) > _SLOWEST:
                del slowest[min(slowest, key=lambda key: slowest[key].seconds)]

    # -- by anybody --------------------------------------------------------------------------------------------------

    def totals(self, batches: int) -> tuple[Totals, Totals | None, Totals]:
        """Return what this epoch, the last one and all of them have added up to.

        Args:
            batches: how many were delivered so far.
        """
        with self._lock:
            now = self._epoch
            epoch = now.so_far(batches - now.before, self._rest(), in_order=self._in_order)
            self._settle_earlier()
            last = None
            total = copy.deepcopy(self._past)
            for earlier in self._earlier:
                last = earlier.so_far(earlier.batches, earlier.rest, in_order=self._in_order)
                total.merge(last)
        total.merge(epoch)
        return epoch, last, total

    def settle(self, batches: int, *, is_settled: bool) -> None:
        """Note whether "auto" has found the number of workers: `settled` counts from then on.

        Args:
            batches: how many were delivered so far.
            is_settled: False if it is looking for another one.
        """
        if is_settled != (self._before_settled is not None):
            self._before_settled = self.totals(batches)[2] if is_settled else None
            self._settled_at = time.monotonic_ns()

    def settled(self, total: Totals) -> Totals | None:
        """Return what was measured since "auto" has found the number of workers; None if it has not.

        Args:
            total: what all epochs have added up to.
        """
        before = self._before_settled
        return None if before is None else total.since(before)

    def slowest(self) -> tuple[SlowSample, ...]:
        """Return the samples that took longest, the slowest first."""
        return tuple(sorted(self._slowest.copy().values(), key=lambda slow: -slow.seconds))

    def record(self, most: float = math.inf) -> Kept:
        """Keep every row from now on, up to `most` or some more; returns what `recorded` makes a recording of."""
        with self._lock:
            self._fold()
            kept = Kept(time.monotonic_ns(), time.time(), most)
            self._kept.append(kept)
            if self.is_under_way:
                kept.epochs.append(EpochSpan(self._epoch.number, 0, 0, 0))
                self.due = 0
        return kept

    def recorded(self, kept: Kept) -> Recording:
        """Return what was recorded, and keep no more of it."""
        with self._lock:
            self._fold()
            if kept in self._kept:
                self._kept.remove(kept)
        blocks = kept.blocks or [columns_of([])]
        rows = {name: np.concatenate([block[name] for block in blocks]) for name in COLUMNS}
        for name in MOMENTS:
            rows[name] = np.where(rows[name] != 0, rows[name] - kept.origin, 0)
        recording = Recording(started=kept.started, epochs=kept.epochs, rows=rows, stages=kept.stages)
        recording.slow_samples = list(self.slowest())
        if self._before_settled is not None:
            recording.settled = max(0, self._settled_at - kept.origin)
        return recording

    # -- adding up; the lock is held ---------------------------------------------------------------------------------

    def _rest(self) -> tuple[int, int, int]:
        return int(self.waited_s * 1e9), int(self.late_s * 1e9), int(self.last_s * 1e9)

    def _leave(self, batches: int) -> None:
        """Leave the epoch for another. Its rows are added up later, with those of others: it takes its time."""
        epoch = self._epoch
        epoch.batches = epoch.batches or batches - epoch.before
        epoch.rest = self._rest()
        if not epoch.batches:
            return
        if self._kept:
            self._fold()
        self._earlier.append(epoch)
        if sum(len(earlier.rows) for earlier in self._earlier) >= _BLOCK:
            self._settle_earlier()

    def _settle_earlier(self) -> None:
        """Add up the rows of all epochs but the last one that was left, in one go."""
        done, self._earlier = self._earlier[:-1], self._earlier[-1:]
        rows = [row for epoch in done for row in epoch.rows]
        if not done:
            return
        together = Totals()
        columns = columns_of(rows)
        settle_order(columns)
        together.add(columns, in_order=self._in_order)
        for epoch in done:
            for _, name, spent in epoch.named:
                together.add_stage(name, spent)
            if epoch.rows:
                epoch.totals.span(epoch.rows[0][_GOT], max(epoch.rows[-1][_GOT], epoch.rest[2]))
        batches = sum(epoch.batches - epoch.totals.batches for epoch in done)
        together.rest(batches, sum(epoch.rest[0] for epoch in done), sum(epoch.rest[1] for epoch in done))
        for totals in (together, *(epoch.totals for epoch in done)):
            self._past.merge(totals)

    def _fold(self, *, keep: int = 0) -> None:
        """Add up the rows of this epoch but for the last `keep`, and forget them."""
        epoch = self._epoch
        rows, named = epoch.rows[:], epoch.named
        count = len(rows) - keep
        if count <= 0:
            return
        columns = columns_of(rows)
        settle_order(columns)
        columns = {name: column[:count] for name, column in columns.items()}
        epoch.totals.fold(columns, in_order=self._in_order)
        done = [told for told in named if told[0] < count]
        for _, name, spent in done:
            epoch.totals.add_stage(name, spent)
        del epoch.rows[:count]  # and not those that another thread writes meanwhile
        epoch.named = [(number - count, name, spent) for number, name, spent in named if number >= count]
        for kept in self._kept:
            kept.add(columns, done)
        self._kept = [kept for kept in self._kept if not kept.is_full]


_observers: References[Observer] = References()


def _renew_in_child() -> None:
    """Let nobody wait, in a process that was forked, for a lock that a thread of its parent held."""
    for observer in _observers:
        observer._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_in_child)
