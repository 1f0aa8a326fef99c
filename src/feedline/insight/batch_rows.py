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
    "epoch",  # which one, and
    "ordinal",  # which batch of it
    "worker",  # who made it; -1: the training loop itself
    "samples",
    "bytes",
    "given",  # when the task was given to a worker; inline: when it was asked for
    "began",  # when the worker began it
    "fetch",  # how long that took, with transform
    "transform",  # 0 if unknown
    "collate",
    "write",  # 0 where collate writes straight into the slot
    "computed",  # CPU time of all that; -1 if that is not known
    "queued",  # how long the worker was ready to run and had no core; 0 of short batches, where it is not looked at
    "finished",  # when the worker had its answer ready
    "came",  # when the training process had it
    "asked",  # when the training loop asked for it
    "got",  # when next() returned it
    "behind",  # how many later batches were ready when it was asked for
    "device",  # from came to ready on the device; 0 without one
    "held",  # 1 if the task was given late because no slot was free: the program holds batches
    "first",  # 1 if the worker had answered nothing before
    "body",  # how long the training loop was at the batch before; -1 if that is not known
    "overtaken",  # when the first later batch was ready; 0 if none was before this one
    "weight",  # how many batches it stands for: of very short ones, not every batch has a row, unless they are recorded
)
"""What a row holds, all integers: moments and durations in nanoseconds, on the clock of `time.monotonic_ns`."""

MOMENTS = ("given", "began", "finished", "came", "asked", "got", "overtaken")
DURATIONS = ("fetch", "transform", "collate", "write", "computed", "queued", "device", "body")

STAGES = ("wait", "fetch", "transform", "collate", "write", "transfer", "device")
"""Whose distributions are kept; those that users name come besides."""

Row: TypeAlias = tuple[int, ...]

DEFAULTS = dict.fromkeys(COLUMNS, 0) | {"computed": -1, "body": -1, "weight": 1}


def row(**values: int) -> Row:
    """Return a row with these values, and 0 for all others."""
    return tuple((DEFAULTS | values).values())


def columns_of(rows: Sequence[Row]) -> dict[str, NDArray[np.int64]]:
    """Return rows as columns."""
    table = np.array(rows, np.int64).reshape(-1, len(COLUMNS))
    return {name: table[:, place] for place, name in enumerate(COLUMNS)}


def settle_order(columns: dict[str, NDArray[np.int64]]) -> None:
    """Find out for each row when later batches were ready, from when these were finished.

    Batches are not taken in before somebody waits for them, so that this is not known when a row is written.
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
    # Of two batches that take equally long either may be ready first, a little. What counts is one that is late by far,
    # or for which others were waiting already.
    busy = finished - columns["began"]
    is_late = (busy > _LATE * np.median(busy)) | (overtaken <= asked) if len(busy) else made
    columns["overtaken"] = np.where(made & is_late & (overtaken < finished), overtaken, 0)


_SUMS = (
    *("started", "batches", "samples", "bytes", "ready", "opened", "waited", "late"),
    *("timed", "computed", "queued", "made"),
)
_AFTERWARDS = ("device", "deliver")
"""Causes of waiting for a batch that has come."""
_LATE = 2
"""Batches that take so many times as long as most are late. A guess."""
_NEVER = 1 << 62
_MOST_STAGES = 64
NEAR = 64
"""How many rows a batch that is late can be overtaken by, as far as anybody counts."""


class Totals:
    """What rows add up to. Nanoseconds throughout.

    Args:
        begun: when the epoch was begun.
    """

    def __init__(self, begun: int = 0) -> None:
        self.begun = self.last = begun
        self.elapsed = 0
        """Time of epochs that were merged into this."""
        self.started = 0
        """From the beginning to the first batch."""
        self.batches = 0
        self.samples = 0
        self.bytes = 0
        self.ready = 0
        """Sum of the batches that were ready when one was asked for."""
        self.is_sampled = False
        """True if there were more batches than rows."""
        self.opened = 0
        """How long `iter(loader)` took, and the end of the epoch."""
        self.waited = 0
        """How long `next()` took, of all batches, and"""
        self.late = 0
        """how much of that until the batch had come."""
        self._waits = dict.fromkeys(CAUSES, 0)
        """What the rows say of that: where they stand for several batches, what matters is the shares."""
        self.stages: dict[str, Histogram] = {}
        self.body = Histogram()
        self.busy: dict[int, int] = {}
        """By worker."""
        self.timed = 0
        """Batches whose CPU time is known,"""
        self.computed = 0
        """that time, and"""
        self.queued = 0
        """how long they had no core, and"""
        self.made = 0
        """how long they took, with that."""

    @property
    def nanoseconds(self) -> int:
        """How long it took."""
        return self.elapsed + self.last - self.begun

    def span(self, first: int, last: int) -> None:
        """Note when batches were delivered: the first of those that are added up next, and the last."""
        if not self.batches:
            self.started = first - self.begun
        self.last = max(self.last, last)

    def fold(self, columns: Columns, *, in_order: bool = True) -> None:
        """Add rows up, in the order in which they were written."""
        got = columns["got"]
        if len(got):
            self.span(int(got[0]), int(got.max()))
            self.add(columns, in_order=in_order)

    def add(self, columns: Columns, *, in_order: bool = True) -> None:
        """Add rows up, which may be of several epochs; when they were delivered does not count."""
        got, weight = columns["got"], columns["weight"]
        count = int(weight.sum())
        self.batches += count
        self.is_sampled |= count > len(got)
        self.samples += int((columns["samples"] * weight).sum())
        self.bytes += int((columns["bytes"] * weight).sum())
        made = columns["finished"] != 0  # which may lie before a recording began
        was_ready = made & (columns["finished"] <= columns["asked"])
        self.ready += int(((columns["behind"] + was_ready) * weight).sum())
        causes = causes_of(columns, in_order=in_order)
        for cause, waited in causes.items():
            self._waits[cause] += int((waited * weight).sum())
        took = sum(int(parts.sum()) for parts in causes.values())
        self.waited += took
        self.late += took - sum(int(causes[cause].sum()) for cause in _AFTERWARDS)
        self._add("wait", got - columns["asked"], weight)
        self._add("fetch", columns["fetch"] - columns["transform"], weight, made)
        for name in ("transform", "collate", "write", "device"):
            self._add(name, columns[name], weight, columns[name] > 0)
        # Before it is asked for, nobody fetches it from where the worker has put it.
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

    def rest(self, batches: int, waited: int, late: int, last: int = 0) -> None:
        """Say how many batches there were in truth, if rows stand for several, and how long the others were waited for.

        Args:
            batches: all of them.
            waited: how long `next()` took of those that have no row, and
            late: how much of that until they had come; is not known without workers.
            last: when the last of them was delivered.
        """
        self.last = max(self.last, last)
        if -1 in self.busy:
            told = sum(self._waits.values())
            late = waited * (told - sum(self._waits[cause] for cause in _AFTERWARDS)) // max(told, 1)
        self.waited += waited
        self.late += late
        if 0 < self.batches < batches:
            share = batches / self.batches
            self.samples, self.bytes, self.ready = (
                round(share * figure) for figure in (self.samples, self.bytes, self.ready)
            )
            self.busy = {worker: round(share * spent) for worker, spent in self.busy.items()}
            self.batches, self.is_sampled = batches, True

    @property
    def waits(self) -> dict[str, int]:
        """What the training loop waited for, by cause."""
        waits = self._shared_out()
        waits["start"] += self.opened
        return waits

    def _shared_out(self) -> dict[str, int]:
        """Share out how long batches were waited for, as the rows say."""
        waits: dict[str, int] = {}
        until = tuple(cause for cause in CAUSES if cause not in _AFTERWARDS)
        parts = ((until, self.late, "transfer"), (_AFTERWARDS, self.waited - self.late, "deliver"))
        for causes, waited, unknown in parts:
            told = sum(self._waits[cause] for cause in causes)
            waits |= {cause: self._waits[cause] * waited // max(told, 1) for cause in causes}
            largest = max(causes, key=self._waits.__getitem__) if told else unknown
            waits[largest] += waited - sum(waits[cause] for cause in causes)
        return waits

    def add_stage(self, name: str, duration: int) -> None:
        """Count how long a task was in a stage that the user has named.

        Of very many names, such as one for every file, those that come late count as one.
        """
        if len(self.stages) >= _MOST_STAGES and name not in self.stages:
            name = "other"
        self._add(name, np.array([duration]), np.array([1]))

    def open(self, duration: int) -> None:
        """Count what `iter(loader)` took: the training loop waited for it."""
        self.opened += duration

    def end(self, asked: int, ended: int) -> None:
        """Note when the epoch was over, and since when that was waited for: workers may have had to end."""
        self.opened += ended - asked
        self.last = max(self.last, ended)

    def merge(self, other: Totals) -> None:
        """Add up what another one has added up."""
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

    def since(self, earlier: Totals) -> Totals:
        """Return what was added up since an earlier copy of this."""
        later = Totals()
        later.elapsed = self.nanoseconds - earlier.nanoseconds
        later.is_sampled = self.is_sampled
        for name in _SUMS:
            setattr(later, name, max(0, getattr(self, name) - getattr(earlier, name)))
        before, now = earlier._shared_out(), self._shared_out()
        later._waits = {cause: max(0, waited - before[cause]) for cause, waited in now.items()}
        for name, histogram in self.stages.items():
            later.stages[name] = histogram.since(earlier.stages.get(name, Histogram()))
        later.body = self.body.since(earlier.body)
        later.busy = {worker: max(0, spent - earlier.busy.get(worker, 0)) for worker, spent in self.busy.items()}
        return later
