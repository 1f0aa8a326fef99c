"""Collects measurements of a running loader: of every batch, or of a sample of them when batches are very short.

Writing a row takes tens of microseconds, including its share of the summation. So for batches that take less than
`_SHORT_NS`, a row is written about every `_APART_NS` and stands for the batches before it. Its `weight` is their
number, limited so that no row stands for more time than has passed. The first batches of an epoch, and all batches that
are recorded, get a row each. The total wait is still exact, because the waits of batches without a row are
summed up. The rows show what training waited for.

The code that delivers batches checks `due` and `got`, and calls `write` before it marks the batch as delivered: nothing
may be called afterwards (see `delivery/driver/caller_lock.py`). Any thread may call `stats()` meanwhile.

Every loader has an observer, so this module imports what adds up rows only where it does so: a loader whose figures
nobody reads, for fewer batches than `_BLOCK`, never needs it.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from feedline.system.references import References
from feedline.types import TaskNotes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from feedline.insight.batch_rows import Row, Totals
    from feedline.insight.recording import EpochSpan, Recording
    from feedline.insight.stats import SlowSample

_SHORT_NS = 5_000_000
"""Batches that take this long or longer get a row each."""
_APART_NS = 40_000_000
"""The interval between rows of shorter batches. A row costs 15 to 30 us, and a training process that waits for workers
on a busy machine uses about 4 ms of CPU time in these 40, so rows take less than 1 % of it."""
_EXACT = 8
"""This many batches at the start of an epoch get a row each, however short they are."""
_MOST = 1024
"""The most batches between two rows."""
_BLOCK = 1000
"""How many rows are added up at once."""
_SLOWEST = 10
_NEVER = 1 << 62


@dataclass(eq=False)
class Kept:
    """The rows and epochs of a recording."""

    origin: int
    started: float
    most: float
    """Stop keeping rows at this number; later batches are measured as without a recording."""
    blocks: list[dict[str, NDArray[np.int64]]] = field(default_factory=list)
    rows: int = 0
    """Number of rows in the blocks."""
    epochs: list[EpochSpan] = field(default_factory=list)
    stages: dict[str, list[list[int]]] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        """True if no more rows are kept."""
        return self.rows >= self.most

    def begin(self, epoch: int, begun: int, opened: int) -> None:
        """Begin an epoch, which `iter(loader)` was called for at `begun`, for so long."""
        from feedline.insight.recording import EpochSpan

        self.epochs.append(EpochSpan(epoch, begun - self.origin, opened, self.rows))

    def add(self, columns: dict[str, NDArray[np.int64]], stage_times: list[tuple[int, str, int]]) -> None:
        """Keep some rows, and the times that their tasks spent in stages named by users."""
        for number, name, spent in stage_times:
            self.stages.setdefault(name, []).append([self.rows + number, spent])
        self.blocks.append(columns)
        self.rows += len(columns["got"])


@dataclass
class _Epoch:
    """Measurements of one epoch."""

    number: int
    before: int
    """Number of batches delivered before it."""
    begun: int
    """When it began; it has lasted until `last` at least."""
    last: int
    opened: int
    """How long `iter(loader)` and ending the epoch took."""
    folded: Totals | None = None
    """Sums of the rows that were added up, and of what is not in rows; None in a short epoch, which has none."""
    rows: list[Row] = field(default_factory=list)
    """Rows that are not added up yet."""
    named: list[tuple[int, str, int]] = field(default_factory=list)
    """Times in stages named by users: row number, stage, nanoseconds."""
    batches: int = 0
    """Number of batches, once the epoch has ended or was abandoned."""
    rest: tuple[int, int] = (0, 0)
    """For an epoch that was followed by another: the waits of its batches without a row; see `Totals.rest`."""

    def sums(self) -> Totals:
        """Return the sums to add to."""
        from feedline.insight.batch_rows import Totals

        if self.folded is None:
            self.folded = Totals(self.begun)
        return self.folded

    def totals(self) -> Totals:
        """Return a copy of the sums, with the duration of the epoch."""
        from feedline.insight.batch_rows import Totals

        totals = Totals(self.begun) if self.folded is None else copy.deepcopy(self.folded)
        totals.opened += self.opened
        totals.last = max(totals.last, self.last)
        return totals

    def so_far(self, batches: int, rest: tuple[int, int], *, in_order: bool) -> Totals:
        """Return the sums of all rows so far, without removing any."""
        from feedline.insight.batch_rows import delivered_columns

        totals = self.totals()
        columns = delivered_columns(self.rows[:])
        totals.fold(columns, in_order=in_order)
        for _, name, spent in self.named:
            totals.add_stage(name, spent)
        totals.rest(batches, *rest)
        return totals


class Observer:
    """Rows of one loader's batches, and their sums.

    Args:
        in_order: False if batches are delivered as they are finished.
    """

    def __init__(self, *, in_order: bool = True) -> None:
        self._in_order = in_order
        self.due = _NEVER
        """From this number of batches on, the driver sets `got` to the time, so that the next batch gets a row."""
        self.got = 0
        """When the last batch was delivered, if the next one is to get a row, else 0; -1 before the first batch."""
        self.waited_s = 0.0
        """How long the training loop waited in this epoch for batches without a row."""
        self.last_s = 0.0
        """When the last of these batches was delivered."""
        self.is_under_way = False
        """True from the beginning of an epoch to its end."""
        self._lock = threading.Lock()
        """Held while rows are added up, and while sums are read."""
        self._epoch = _Epoch(0, 0, 0, 0, 0)
        self._earlier: list[_Epoch] = []
        """Past epochs whose rows are not added up yet. The last of them can still be requested by itself."""
        self._earlier_size = 0
        """How many they are, and their rows."""
        self._past: Totals | None = None
        """Sums of all epochs before those; None if there are none."""
        self._seen = 0
        """Number of batches that the rows stand for."""
        self._seen_at = 0
        self._slowest: dict[str, tuple[float, Any, int]] = {}  # Any: an index
        """Seconds, index and worker, by the `repr` of the index, which need not be hashable itself."""
        self._kept: list[Kept] = []
        """Recordings that are running and not full."""
        _observers.add(self)

    @property
    def is_recording(self) -> bool:
        """True if every batch gets a row that is kept."""
        return bool(self._kept)

    # -- called by the code that delivers batches --------------------------------------------------------------------

    def begin(self, epoch: int, begun: int, batches: int) -> None:
        """Begin an epoch; the duration of `iter(loader)` until now counts as waiting.

        Args:
            epoch: its number.
            begun: when `iter(loader)` was called.
            batches: the number of batches delivered before.
        """
        with self._lock:
            self._leave(batches)
            now = time.monotonic_ns()
            self._epoch = _Epoch(epoch, batches, begun, begun, now - begun)
            self.waited_s = self.last_s = 0.0
            self._seen, self._seen_at = batches, now
            self.due, self.got = 0, -1
            self.is_under_way = True
            for kept in self._kept:
                kept.begin(epoch, begun, now - begun)

    def end(self, batches: int, asked: int) -> None:
        """Note that an epoch has ended. The time since `asked` counts as waiting: workers may have had to stop."""
        if not self.is_under_way:
            return
        now = time.monotonic_ns()
        with self._lock:
            self._epoch.opened += now - asked
            self._epoch.last = now
            self._epoch.batches = batches - self._epoch.before
            self.is_under_way = False
            self.due, self.got = _NEVER, 0
            for kept in self._kept:
                if kept.epochs:
                    kept.epochs[-1] = replace(kept.epochs[-1], asked=asked - kept.origin, ended=now - kept.origin)

    def write(self, row_parts: Row, asked: int, got: int, more: Row, batches: int | None) -> None:
        """Write the row of a batch that is about to be delivered.

        Args:
            row_parts: its columns from "ordinal" to "came".
            asked: when it was requested.
            got: when it is delivered.
            more: its columns from "behind" to "first".
            batches: the number of batches delivered, including this one; None if every batch has a row.
        """
        if batches is None:
            batches = self._seen + 1
        known, epoch = self.got, self._epoch
        body = asked - known if known > 0 else -1
        count, passed = batches - self._seen, got - self._seen_at
        weight = 1
        if not known:  # a batch so slow that it gets a row out of turn, which stands for no other batch
            self._seen += 1
            self._seen_at += got - asked
        else:
            if count > 1 and not self._kept:
                weight = max(1, min(count, passed // max(1, got - asked + max(body, 0))))
            self._seen, self._seen_at, self.got = batches, got, got
            if passed < _SHORT_NS * count and not self._kept and batches - epoch.before >= _EXACT:
                self.got = 0
                self.due = batches + min(_MOST, _APART_NS * count // max(passed, 1)) - 1
        epoch.rows.append((epoch.number, *row_parts, asked, got, *more, body, 0, weight))
        if len(epoch.rows) >= _BLOCK:
            with self._lock:
                self._fold(is_full=True)

    def add_notes(self, notes: TaskNotes, worker: int) -> None:
        """Keep the stage times and slow samples reported with a batch, just before its row is written."""
        epoch = self._epoch
        number = len(epoch.rows)
        epoch.named.extend((number, name, spent) for name, spent in notes.stages.items())
        tokens, places = notes.packed
        if places:
            epoch.sums().packed_tokens += tokens
            epoch.sums().packed_places += places
        slowest = self._slowest
        for spent, index in notes.slow:
            key = repr(index)
            if key not in slowest or slowest[key][0] < spent / 1e9:
                slowest[key] = spent / 1e9, index, worker
            if len(slowest) > _SLOWEST:
                del slowest[min(slowest, key=lambda key: slowest[key][0])]

    # -- called from any thread --------------------------------------------------------------------------------------

    def totals(self, batches: int) -> tuple[Totals, Totals | None, Totals]:
        """Return the sums of this epoch, of the last one, and of all epochs.

        Args:
            batches: the number of batches delivered so far.
        """
        from feedline.insight.batch_rows import Totals

        with self._lock:
            now = self._epoch
            epoch = now.so_far(batches - now.before, self._rest(), in_order=self._in_order)
            self._sum_earlier()
            last = None
            total = Totals() if self._past is None else copy.deepcopy(self._past)
            for earlier in self._earlier:
                last = earlier.so_far(earlier.batches, earlier.rest, in_order=self._in_order)
                total.merge(last)
        total.merge(epoch)
        return epoch, last, total

    def slowest(self) -> tuple[SlowSample, ...]:
        """Return the samples that took longest to fetch, slowest first."""
        from feedline.insight.stats import SlowSample

        slowest = sorted(self._slowest.copy().values(), key=lambda slow: -slow[0])
        return tuple(SlowSample(index, seconds, worker) for seconds, index, worker in slowest)

    def record(self, most: float = math.inf) -> Kept:
        """Keep every row from now on, up to about `most`. Pass the result to `recorded` to get the recording."""
        with self._lock:
            self._fold()
            kept = Kept(time.monotonic_ns(), time.time(), most)
            self._kept.append(kept)
            if self.is_under_way:
                kept.begin(self._epoch.number, kept.origin, 0)
                self.due = 0
        return kept

    def recorded(self, kept: Kept) -> Recording:
        """Stop keeping rows for a recording, and return it."""
        import numpy as np

        from feedline.insight.batch_rows import COLUMNS, MOMENTS, columns_of
        from feedline.insight.recording import Recording

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
        return recording

    # -- adding up; the lock is held ---------------------------------------------------------------------------------

    def _rest(self) -> tuple[int, int]:
        return int(self.waited_s * 1e9), int(self.last_s * 1e9)

    def _leave(self, batches: int) -> None:
        """Close the current epoch before the next one begins. Its rows are added up later, because that is slow."""
        epoch = self._epoch
        epoch.batches = epoch.batches or batches - epoch.before
        epoch.rest = self._rest()
        if not epoch.batches:
            return
        if self._kept:
            self._fold()
        self._earlier.append(epoch)
        self._earlier_size += 1 + len(epoch.rows)
        if self._earlier_size >= _BLOCK:
            self._sum_earlier()

    def _sum_earlier(self) -> None:
        """Add up the rows of all past epochs but the last, at once."""
        from feedline.insight.batch_rows import GOT, Totals, delivered_columns

        done, self._earlier = self._earlier[:-1], self._earlier[-1:]
        self._earlier_size = sum(1 + len(epoch.rows) for epoch in self._earlier)
        rows = [row for epoch in done for row in epoch.rows]
        if not done:
            return
        together = Totals()
        columns = delivered_columns(rows)
        together.add(columns, in_order=self._in_order)
        for epoch in done:
            for _, name, spent in epoch.named:
                together.add_stage(name, spent)
            if epoch.rows:
                epoch.last = max(epoch.last, epoch.rows[-1][GOT], epoch.rest[1])
        folded = [epoch.folded for epoch in done if epoch.folded is not None]
        batches = sum(epoch.batches for epoch in done) - sum(totals.batches for totals in folded)
        together.rest(batches, sum(epoch.rest[0] for epoch in done))
        for epoch in done:
            together.opened += epoch.opened
            first = epoch.rows[0][GOT] if epoch.rows else epoch.begun
            if epoch.folded is not None:
                epoch.folded.span(first, epoch.last)
            else:
                together.elapsed += epoch.last - epoch.begun
                together.started += first - epoch.begun
        self._past = self._past or Totals()
        for totals in (together, *folded):
            self._past.merge(totals)

    def _fold(self, *, is_full: bool = False) -> None:
        """Add up the rows of this epoch, and remove them.

        Args:
            is_full: the epoch goes on. The last rows stay: later ones may show that batches overtook theirs.
        """
        from feedline.insight.batch_rows import NEAR, delivered_columns

        epoch = self._epoch
        rows, named = epoch.rows[:], epoch.named
        count = len(rows) - (NEAR if is_full else 0)
        if count <= 0:
            return
        columns = delivered_columns(rows)
        columns = {name: column[:count] for name, column in columns.items()}
        epoch.sums().fold(columns, in_order=self._in_order)
        done = [one for one in named if one[0] < count]
        for _, name, spent in done:
            epoch.sums().add_stage(name, spent)
        del epoch.rows[:count]  # but not the rows that another thread has added meanwhile
        epoch.named = [(number - count, name, spent) for number, name, spent in named if number >= count]
        for kept in self._kept:
            kept.add(columns, done)
        self._kept = [kept for kept in self._kept if not kept.is_full]


_observers: References[Observer] = References()


def _renew_in_child() -> None:
    """Replace locks in a forked child process: a thread of the parent may have held them."""
    for observer in _observers:
        observer._lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_in_child)
