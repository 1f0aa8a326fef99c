"""The steady part of a recorded run, with changed times: the input of a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, BadRecording
from feedline.insight.attribution import Columns
from feedline.insight.batch_rows import Totals
from feedline.insight.period import Period, period_of
from feedline.insight.recording import Recording
from feedline.insight.verdict import cores_of, moves_of
from feedline.insight.worker_model import HANDOVER_S
from feedline.memory.codec import SMALL_BYTES
from feedline.simulation.scenario import contention

_FEW = 10
"""Minimum number of batches in a recording, besides those of the start. A guess."""
LONGEST, _LONGEST_NS = 1000, 100_000_000
"""The longest time of a batch in a prediction: a multiple of the median, or nanoseconds if that is more. The core looks
for other work several times per median while a batch is late: a damaged recording would keep it busy forever."""
_STRETCHES = 10
"""A long run is sampled in this many parts: a single part may be slower or faster than the rest."""
_MOST_WORKERS = 1024
HANDOVER_NS = round(HANDOVER_S * 1e9)
_STAGES = ("fetch", "transform", "collate", "write")


@dataclass(frozen=True)
class Changes:
    """Changes to a recorded run; None keeps what was recorded.

    Raises:
        BadOption: a value is out of range.
    """

    workers: int | None = None
    """0 for none: the training loop makes batches itself."""
    prefetch: int | None = None
    """Batches per worker."""
    in_order: bool | None = None
    stages: Mapping[str, float] = field(default_factory=dict)
    """Factors for the times of stages: fetch (without transform), transform, collate, write, or a stage that the
    recorded dataset has named."""
    step: float = 1.0
    """Factor for the time of a training step."""
    step_s: float | None = None
    """Time of every step, instead of the recorded times."""
    computing: float | None = None
    """The share of a batch's time in which its worker computes; for the rest it waits and needs no core. None for the
    recorded share."""

    def __post_init__(self) -> None:
        if self.workers is not None and not 0 <= self.workers <= _MOST_WORKERS:
            raise BadOption(f"workers={self.workers} is out of range. Give 0 for none, or up to {_MOST_WORKERS}.")
        if self.prefetch is not None and self.prefetch < 1:
            raise BadOption(f"prefetch={self.prefetch}: a worker needs at least 1 batch to work on.")
        for name, factor in {**self.stages, "step": self.step}.items():
            if not 0 < factor < np.inf:
                raise BadOption(f"{name} times {factor}: the factor must be above 0, such as 0.5 for half the time.")
        if self.step_s is not None and not 0 <= self.step_s < np.inf:
            raise BadOption(f"step_s={self.step_s} is not a valid time. Give seconds, 0 or more.")
        if self.computing is not None and not 0 <= self.computing <= 1:
            raise BadOption(f"computing={self.computing} is not a share. Give a number from 0 to 1.")


class RecordedRun:
    """The steady part of a recorded run, with changed times. Nanoseconds throughout.

    Args:
        recording: the recorded run.
        changes: the changes, of which only times matter here.
        most: the largest number of batches to use.
    """

    def __init__(self, recording: Recording, changes: Changes, most: int) -> None:
        self.most = most
        settings = recording.settings
        self.engine = str(settings.get("engine", ""))
        self.workers = int(settings["workers"] if "workers" in settings else recording.counters.get("workers", 0))
        self.prefetch = int(settings.get("prefetch") or 2)
        self.in_order = bool(settings.get("in_order", True))
        self.moves = moves_of(settings)
        self.cores: int | None = cores_of(settings) or None
        numbers, self.period = self._steady(recording)
        steps = recording.rows["body"][numbers]
        self.steps = _some(_changed_steps(steps[steps >= 0], changes), most)
        numbers = numbers[recording.rows["finished"][numbers] != 0]
        if len(numbers) < _FEW:
            raise BadRecording(
                f"The recording is too short for a prediction: besides the start, it has {len(numbers)} batches with "
                f"all their times, and at least {_FEW} are needed. Record a longer run."
            )
        rows = {name: column[numbers] for name, column in recording.rows.items()}
        self.own, self.between = _own(rows), round(_between(rows))
        self.alone = self.own[False] * (0 if self.workers else 1)
        """Time of next() besides making a batch, if there are no workers; in two parts, as in `own`."""
        if not self.workers:
            self.own = {late: own + np.array([HANDOVER_NS, 0]) for late, own in self.own.items()}
            self.between = HANDOVER_NS
        order = np.lexsort((rows["ordinal"], rows["epoch"]))
        rows = {name: column[order] for name, column in rows.items()}
        self.samples = _some(rows["samples"], most)
        self.comes_in_messages = int(rows["bytes"].max()) <= SMALL_BYTES
        stages, more = _changed_stages(rows, _named(recording, numbers[order]), changes)
        self.stages = {name: _some(spent, most) for name, spent in stages.items()}
        measured = _computing(rows)
        self.was_timed = measured is not None
        """True if the workers' CPU time was recorded."""
        given = measured if changes.computing is None else changes.computing
        self.computing = 1.0 if given is None else min(1.0, given)
        """The share of a batch's time in which its worker computes."""
        batches = np.maximum(rows["finished"] - rows["began"] + more, 1.0)
        if self.cores is not None and self.workers:
            batches /= contention(_at_work(rows), self.cores, self.computing)
        longest = max(LONGEST * float(np.median(batches)), _LONGEST_NS)
        self.is_cut = float(batches.max()) > longest
        """True if batches took longer than allowed and were cut."""
        self.batches = np.minimum(_some(batches, most), longest)
        """Time of a worker for each batch, in order, if no other worker needs its core. Delays caused by other programs
        are included."""

    def _steady(self, recording: Recording) -> tuple[NDArray[np.int64], Period]:
        """Return the rows after the start of each epoch, and their figures."""
        rows, spans, total = recording.rows, recording.epochs, Totals()
        found = [np.zeros(0, np.int64)]
        for number, span in enumerate(spans, 1):
            end = spans[number].row if number < len(spans) else len(rows["got"])
            begin = span.row + _start(rows["first"][span.row : end], self.workers * self.prefetch)
            if begin < end:
                totals = Totals(int(rows["got"][begin - 1]))
                totals.fold({name: column[begin:end] for name, column in rows.items()}, in_order=self.in_order)
                total.merge(totals)
                found.append(np.arange(begin, end))
        return np.concatenate(found), period_of(total, self.workers)


_Column = TypeVar("_Column", NDArray[np.int64], NDArray[np.float64])


def _some(column: _Column, most: int) -> _Column:
    """Return at most `most` values; from a longer column, take parts from all over the run."""
    if len(column) <= most:
        return column
    length = max(1, most // _STRETCHES)
    starts = np.linspace(0, len(column) - length, max(1, most // length)).astype(np.int64)
    found: _Column = column[(starts[:, None] + np.arange(length)).ravel()]
    return found


def _start(first: NDArray[np.int64], window: int) -> int:
    """Return how many rows belong to an epoch's start: until all workers have answered and a window is used up."""
    answered = np.flatnonzero(first)
    until_all = 1 + int(answered[-1]) if len(answered) else 1
    return max(until_all, min(window, len(first) // 4))


def _own(rows: Columns) -> dict[bool, NDArray[np.int64]]:
    """Return the time of next() besides waiting for workers: for batches that it waited for (True), and for others.

    Each has two parts: until the batch has arrived, and until it is delivered. A thread that waits must first wake up.
    """
    asked, got, finished = rows["asked"], rows["got"], rows["finished"]
    alone = rows["worker"] < 0
    since = np.where(alone, asked + finished - rows["began"], np.maximum(asked, finished))
    came = np.clip(rows["came"], since, np.maximum(since, got))
    own = np.maximum(np.stack([came - since, got - came], axis=1), 0)
    waited = (finished > asked) & ~alone
    late = own[waited] if waited.any() else own
    return {True: late, False: own[~waited] if not waited.all() else own * [0, 1]}


def _between(rows: Columns) -> float:
    """Return the mean time between two batches of a worker, if the second was already assigned."""
    order = np.lexsort((rows["began"], rows["worker"]))
    worker, given, began, finished = (rows[name][order] for name in ("worker", "given", "began", "finished"))
    waiting = (worker[1:] == worker[:-1]) & (worker[1:] >= 0) & (given[1:] <= finished[:-1])
    between = np.maximum(began[1:] - finished[:-1], 0)[waiting]
    return float(between.mean()) if len(between) else 0.0


def _at_work(rows: Columns) -> NDArray[np.int64]:
    """Return for each batch how many workers were busy when it began, including its own."""
    began, finished = np.sort(rows["began"]), np.sort(rows["finished"])
    begun, ended = (np.searchsorted(moments, rows["began"], "right") for moments in (began, finished))
    found: NDArray[np.int64] = np.maximum(begun - ended, 1)
    return found


def _computing(rows: Columns) -> float | None:
    """Return the computing share of the workers' time, excluding time without a core; None if unknown."""
    timed = rows["computed"] >= 0
    spent = (rows["finished"] - rows["began"] - rows["queued"])[timed].sum()
    return float(rows["computed"][timed].sum() / max(spent, 1)) if timed.any() else None


def _named(recording: Recording, numbers: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return the time that the batches of these rows spent in stages named by the user."""
    found = {}
    for name, pairs in recording.stages.items():
        spent = np.zeros(len(recording.rows["got"]), np.int64)
        for number, duration in pairs:
            spent[number] += duration
        found[name] = spent[numbers]
    return found


def _changed_stages(
    rows: Columns, named: Columns, changes: Changes
) -> tuple[dict[str, NDArray[np.float64]], NDArray[np.float64]]:
    """Return the times of stages after the changes, and the additional time of each batch."""
    stages = {name: rows[name].astype(float) for name in _STAGES}
    known = {**stages, "fetch": stages["fetch"] - stages["transform"], **named}
    more = np.zeros(len(rows["got"]))
    for name, factor in changes.stages.items():
        if name not in known or not known[name].any():
            there = ", ".join(one for one, spent in known.items() if spent.any()) or "none"
            raise BadOption(
                f"The recording has no times of the stage {name!r}, only of {there}. To time a stage, wrap its code "
                f'in: with feedline.stage("{name}").'
            )
        change = (factor - 1) * known[name]
        more += change
        within = {"transform": ("fetch", "transform")}.get(name, (name if name in _STAGES else "fetch",))
        for stage in within:
            stages[stage] = np.maximum(stages[stage] + change, 0)
    return stages, more


def _changed_steps(steps: NDArray[np.int64], changes: Changes) -> NDArray[np.float64]:
    if changes.step_s is not None:
        return np.array([changes.step_s * 1e9])
    if changes.step != 1 and not steps.any():
        raise BadOption(
            f"The recorded training loop took no time between batches, so multiplying it by {changes.step:g} changes "
            "nothing. Give the time of a step instead (step_s=, --step 50ms)."
        )
    return steps.astype(np.float64) * changes.step if len(steps) else np.zeros(1)
