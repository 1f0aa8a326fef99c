"""Measurements of batches: one row each, and their sums over an epoch or a run.

A row is a tuple, so writing one costs next to nothing. NumPy adds up rows by the thousand, and they are discarded; a
`Totals` of a few kilobytes keeps the sums of any number of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from feedline.insight.attribution import CAUSES, Columns, causes_of
from feedline.insight.histogram import Histogram

COLUMNS = (
    "epoch",  # the epoch of the batch
    "ordinal",  # the position of the batch in its epoch
    "worker",  # the worker that made it; -1: the training loop itself
    "samples",
    "bytes",
    "given",  # when the task was assigned to a worker; inline: when the batch was requested
    "began",  # when the worker started it
    "fetch",  # how long fetching took, including transform
    "transform",  # 0 if unknown
    "collate",
    "write",  # 0 where collate writes straight into the slot
    "computed",  # CPU time of fetch, collate and write; -1 if unknown
    "queued",  # how long the worker was ready to run but had no core; 0 for short batches, where it is not measured
    "finished",  # when the worker had its result ready
    "came",  # when the training process received it
    "asked",  # when the training loop requested it
    "got",  # when next() returned it
    "behind",  # how many later batches were ready when it was requested
    "device",  # from came to ready on the device; 0 without one
    "held",  # 1 if the task was assigned late because no slot was free: the program holds batches
    "first",  # 1 if it is the worker's first batch
    "body",  # how long the training loop spent on the previous batch; -1 if unknown
    "overtaken",  # when the first later batch was ready; 0 if none was ready before this one
    "weight",  # how many batches it stands for: not every very short batch has a row, unless a recording is running
)
"""The fields of a row, all integers. Times and durations are nanoseconds on the clock of `time.monotonic_ns`."""

GOT = COLUMNS.index("got")

MOMENTS = ("given", "began", "finished", "came", "asked", "got", "overtaken")
DURATIONS = ("fetch", "transform", "collate", "write", "computed", "queued", "device", "body")

STAGES = ("wait", "fetch", "transform", "collate", "write", "transfer", "device")
"""The stages with a histogram each; stages named by users are added to them."""

Row: TypeAlias = tuple[int, ...]

DEFAULTS = dict.fromkeys(COLUMNS, 0) | {"computed": -1, "body": -1, "weight": 1}


def row(**values: int) -> Row:
    """Return a row with these values and the defaults for all other columns."""
    return tuple((DEFAULTS | values).values())


def columns_of(rows: Sequence[Row]) -> dict[str, NDArray[np.int64]]:
    """Return rows as columns."""
    table = np.array(rows, np.int64).reshape(-1, len(COLUMNS))
    return {name: table[:, place] for place, name in enumerate(COLUMNS)}


def delivered_columns(rows: Sequence[Row]) -> dict[str, NDArray[np.int64]]:
    """Return rows as columns, with what is known only after later batches have come: see `note_overtaken`."""
    columns = columns_of(rows)
    note_overtaken(columns)
    return columns


def note_overtaken(columns: dict[str, NDArray[np.int64]]) -> None:
    """Set `behind` and `overtaken` of each row, from the times at which later batches were finished.

    The training process receives batches only while it waits for one, so this is not known when a row is written.
    """
    finished, asked, behind = columns["finished"], columns["asked"], columns["behind"]
    count, overtaken = np.zeros_like(behind), np.full_like(behind, _NEVER)
    known = np.where(finished != 0, finished, _NEVER)
    for ahead in range(1, min(NEAR, len(asked) - 1) + 1):
        later = known[ahead:]
        count[:-ahead] += later <= asked[:-ahead]
        overtaken[:-ahead] = np.minimum(overtaken[:-ahead], later)
    made = columns["worker"] >= 0
    columns["behind"] = np.maximum(behind, count) * made
    # Of two batches that take equally long, either may be ready slightly earlier. Count only a batch that took
    # far longer than most, or that others were already waiting for.
    busy = finished - columns["began"]
    is_late = (busy > _LATE * np.median(busy)) | (overtaken <= asked) if len(busy) else made
    columns["overtaken"] = np.where(made & is_late & (overtaken < finished), overtaken, 0)


_SUMS = (
    *("started", "batches", "samples", "bytes", "ready", "opened", "waited"),
    *("timed", "computed", "queued", "made", "packed_tokens", "packed_places"),
)
_LATE = 2
"""A batch is late if it takes this many times the median. A guess."""
_NEVER = 1 << 62
_MOST_STAGES = 64
NEAR = 64
"""How many rows after a late batch are checked for batches that overtook it."""


class Totals:
    """Sums of rows, in nanoseconds throughout.

    Args:
        begun: when the epoch began.
    """

    def __init__(self, begun: int = 0) -> None:
        self.begun = self.last = begun
        self.elapsed = 0
        """Time of epochs merged into this one."""
        self.started = 0
        """From the beginning to the first batch."""
        self.batches = 0
        self.samples = 0
        self.bytes = 0
        self.ready = 0
        """Sum over batches: how many were ready when the batch was requested."""
        self.is_sampled = False
        """True if there are more batches than rows."""
        self.opened = 0
        """How long `iter(loader)` and ending the epoch took."""
        self.waited = 0
        """How long `next()` took, over all batches."""
        self._waits = dict.fromkeys(CAUSES, 0)
        """Waits by cause, from the rows. Where rows stand for several batches, only their ratios matter."""
        self.stages: dict[str, Histogram] = {}
        self.body = Histogram()
        self.busy: dict[int, int] = {}
        """By worker."""
        self.packed_tokens = 0
        """Tokens of packed rows, without padding."""
        self.packed_places = 0
        """Tokens and padding of packed rows."""
        self.timed = 0
        """Batches whose CPU time is known."""
        self.computed = 0
        """CPU time of these batches."""
        self.queued = 0
        """How long these batches' workers were ready to run but had no core."""
        self.made = 0
        """How long making these batches took, including `queued`."""

    @property
    def nanoseconds(self) -> int:
        """How long the epoch or epochs took."""
        return self.elapsed + self.last - self.begun

    def span(self, first: int, last: int) -> None:
        """Note the delivery times of the first and the last batch of the rows that are added next."""
        if not self.batches:
            self.started = first - self.begun
        self.last = max(self.last, last)

    def fold(self, columns: Columns, *, in_order: bool = True) -> None:
        """Add rows, in the order in which they were written, and note when their batches were delivered."""
        got = columns["got"]
        if len(got):
            self.span(int(got[0]), int(got.max()))
            self.add(columns, in_order=in_order)

    def add(self, columns: Columns, *, in_order: bool = True) -> None:
        """Add rows, possibly of several epochs; delivery times are not noted."""
        got, weight = columns["got"], columns["weight"]
        count = int(weight.sum())
        self.batches += count
        self.is_sampled |= count > len(got)
        self.samples += int((columns["samples"] * weight).sum())
        self.bytes += int((columns["bytes"] * weight).sum())
        made = columns["finished"] != 0  # not `> 0`: negative if the batch was finished before a recording began
        was_ready = made & (columns["finished"] <= columns["asked"])
        self.ready += int(((columns["behind"] + was_ready) * weight).sum())
        causes = causes_of(columns, in_order=in_order)
        for cause, waited in causes.items():
            self._waits[cause] += int((waited * weight).sum())
        self.waited += sum(int(parts.sum()) for parts in causes.values())
        self._add("wait", got - columns["asked"], weight)
        self._add("fetch", columns["fetch"] - columns["transform"], weight, made)
        for name in ("transform", "collate", "write", "device"):
            self._add(name, columns[name], weight, columns[name] > 0)
        # A finished batch stays where the worker put it until it is requested, so only batches that the training loop
        # waited for measure the transfer.
        is_awaited = made & ~was_ready & (columns["worker"] >= 0)
        self._add("transfer", columns["came"] - columns["finished"], weight, is_awaited)
        known = columns["body"] >= 0
        self.body.add(columns["body"][known], weight[known])
        busy = np.maximum(columns["finished"] - columns["began"], 0) * made * weight
        for worker in np.unique(columns["worker"]).tolist():
            self.busy[worker] = self.busy.get(worker, 0) + int(busy[columns["worker"] == worker].sum())
        timed = weight * (columns["computed"] >= 0)
        self.timed += int(timed.sum())
        self.computed += int((columns["computed"] * timed).sum())
        self.queued += int((columns["queued"] * timed).sum())
        self.made += int((np.maximum(columns["finished"] - columns["began"], 0) * timed).sum())

    def _add(
        self,
        name: str,
        durations: NDArray[np.int64],
        weights: NDArray[np.int64],
        which: NDArray[np.bool_] | None = None,
    ) -> None:
        if which is not None:
            durations, weights = durations[which], weights[which]
        if len(durations):
            self.stages.setdefault(name, Histogram()).add(durations, weights)

    def rest(self, batches: int, waited: int, last: int = 0) -> None:
        """Correct the sums for batches without a row.

        Args:
            batches: the number of all batches.
            waited: how long `next()` took for batches without a row.
            last: when the last of these batches was delivered.
        """
        self.last = max(self.last, last)
        self.waited += waited
        if 0 < self.batches < batches:
            share = batches / self.batches
            self.samples, self.bytes, self.ready = (
                round(share * figure) for figure in (self.samples, self.bytes, self.ready)
            )
            self.busy = {worker: round(share * spent) for worker, spent in self.busy.items()}
            self.batches, self.is_sampled = batches, True

    @property
    def waits(self) -> dict[str, int]:
        """How long the training loop waited, by cause."""
        waits = self._shared_out()
        waits["start"] += self.opened
        return waits

    def _shared_out(self) -> dict[str, int]:
        """Distribute the total wait over the causes, in the proportions of the rows."""
        total = sum(self._waits.values())
        waits = {cause: part * self.waited // max(total, 1) for cause, part in self._waits.items()}
        largest = max(CAUSES, key=self._waits.__getitem__) if total else "deliver"
        waits[largest] += self.waited - sum(waits.values())
        return waits

    def add_stage(self, name: str, duration: int) -> None:
        """Count the time that a task spent in a stage named by the user.

        If there are very many names, such as one per file, all further ones count as "other".
        """
        if len(self.stages) >= _MOST_STAGES and name not in self.stages:
            name = "other"
        self._add(name, np.array([duration]), np.array([1]))

    def open(self, duration: int) -> None:
        """Count the duration of `iter(loader)` as waiting."""
        self.opened += duration

    def end(self, asked: int, ended: int) -> None:
        """Note when the epoch ended, and count the time since `asked` as waiting: workers may have had to stop."""
        self.opened += ended - asked
        self.last = max(self.last, ended)

    def merge(self, other: Totals) -> None:
        """Add the sums of another `Totals`."""
        self.elapsed += other.nanoseconds
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for cause, waited in other._shared_out().items():
            self._waits[cause] += waited
        for name, histogram in other.stages.items():
            is_one_too_many = len(self.stages) >= _MOST_STAGES and name not in self.stages
            self.stages.setdefault("other" if is_one_too_many else name, Histogram()).merge(histogram)
        self.body.merge(other.body)
        self.is_sampled |= other.is_sampled
        for worker, spent in other.busy.items():
            self.busy[worker] = self.busy.get(worker, 0) + spent
