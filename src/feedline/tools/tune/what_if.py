"""What a recorded run would have been like with other settings, or with a stage that is faster.

The recorded times of batches and of the training loop's steps are gone through again, in the order in which they came,
by the real core in virtual time (`feedline.simulation`). What there is to predict is the steady part of a run: what the
start of an epoch takes is left out, of what was recorded as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption, BadRecording
from feedline.insight.attribution import Columns
from feedline.insight.batch_rows import Totals, columns_of, row, settle_order
from feedline.insight.period import Period, period_of
from feedline.insight.recording import Recording
from feedline.insight.verdict import cores_of, load_of, moves_of
from feedline.insight.worker_model import HANDOVER_S, LEAST_GAIN
from feedline.memory.reading import SMALL_BYTES
from feedline.simulation.engine import Trace
from feedline.simulation.scenario import IN_ORDER, UNORDERED, InTurn, Scenario, contention
from feedline.simulation.world import World
from feedline.types import Share
from feedline.types.shown import counted, percent

_FEW = 10
"""Batches that a recording must have at least, besides those of the start. A guess."""
_LEAST, _MOST = 500, 4000
"""Batches that are gone through. Of fewer, the first and the last ones weigh too much; more change nothing."""
GRID_BATCHES = 500
"""Batches that are gone through for each setting of a grid, so that a grid takes a few seconds: a batch takes 0.1 to
0.2 ms, and a grid has 13 to 29 settings."""
_LONGEST, _LONGEST_NS = 1000, 100_000_000
"""How many times the usual time a batch may take in a prediction, or how long if that is more. The core looks for other
work several times in a usual batch's time, for as long as a batch is late: a damaged recording would keep it busy for
ever."""
_STRETCHES = 10
"""Parts of a long run that its batches are taken from: one part alone may be slower or faster than the rest."""
_MOST_WORKERS = 1024
_HANDOVER_NS = round(HANDOVER_S * 1e9)
_SHORT_NS = 1_000_000
_STAGES = ("fetch", "transform", "collate", "write")


@dataclass(frozen=True)
class Changes:
    """What is different from the recorded run; None for what is not.

    Raises:
        BadOption: there is no such setting.
    """

    workers: int | None = None
    """0 for none: the training loop makes batches itself."""
    prefetch: int | None = None
    """Batches per worker."""
    in_order: bool | None = None
    stages: Mapping[str, float] = field(default_factory=dict)
    """By what the times of stages are multiplied: fetch (without transform), transform, collate, write, or one that the
    recorded dataset has named."""
    step: float = 1.0
    """By what the time of a training step is multiplied."""
    step_s: float | None = None
    """How long every step takes instead."""
    computing: float | None = None
    """The share of a batch's time in which its worker computes; the rest it waits, and needs no core. None for what was
    recorded."""

    def __post_init__(self) -> None:
        if self.workers is not None and not 0 <= self.workers <= _MOST_WORKERS:
            raise BadOption(f"workers={self.workers}: give 0 for none, or how many, up to {_MOST_WORKERS}.")
        if self.prefetch is not None and self.prefetch < 1:
            raise BadOption(f"prefetch={self.prefetch}: a worker needs at least 1 batch to work on.")
        for name, factor in {**self.stages, "step": self.step}.items():
            if not 0 < factor < np.inf:
                raise BadOption(f"{name} times {factor}: give a factor above 0, such as 0.5 for half of the time.")
        if self.step_s is not None and not 0 <= self.step_s < np.inf:
            raise BadOption(f"step_s={self.step_s} is no time; give seconds.")
        if self.computing is not None and not 0 <= self.computing <= 1:
            raise BadOption(f"computing={self.computing} is no share; give a number from 0 to 1.")


@dataclass(frozen=True)
class Prediction:
    """What a run would be like, beside what was recorded; both without the start of epochs."""

    workers: int
    prefetch: int
    in_order: bool
    predicted: Period
    recorded: Period
    assumptions: tuple[str, ...] = ()
    """Sentences: what the prediction rests on, where that can be wrong."""
    is_recorded: bool = False
    """True if workers, prefetch and order are those of the recorded run."""

    @property
    def delivery(self) -> str:
        """How batches come from workers, in words; nothing without workers."""
        if not self.workers:
            return ""
        return f"prefetch {self.prefetch}" + ("" if self.in_order else ", any order")

    # Any: what JSON has.
    def as_dict(self) -> dict[str, Any]:
        """Return plain values, as JSON has them."""
        return {
            "workers": self.workers,
            "prefetch": self.prefetch,
            "in_order": self.in_order,
            "predicted": self.predicted.as_dict(),
            "recorded": self.recorded.as_dict(),
            "assumptions": list(self.assumptions),
        }


def predict(recording: Recording, changes: Changes | None = None, *, batches: int = _MOST) -> Prediction:
    """Predict what a recorded run would be like with changes.

    Faults, memory budgets and batches that the program keeps are left out. What it costs to send batches between
    processes is a guess if the recorded run had no workers.

    Args:
        recording: of the run.
        changes: what is different; None for nothing.
        batches: how many are gone through at most. Of a longer run they are parts from all over it.

    Raises:
        BadOption: a stage is to change that the recording does not know, or steps that took no time.
        BadRecording: there is too little in it.

    Example:
        >>> import feedline, os, tempfile, time
        >>> path = os.path.join(tempfile.mkdtemp(), "run.json")
        >>> class Slow:
        ...     def __len__(self):
        ...         return 40
        ...     def __getitem__(self, index):
        ...         time.sleep(0.002)
        ...         return index
        >>> loader = feedline.Loader(Slow(), 1)
        >>> with feedline.record(loader, path):
        ...     for batch in loader:
        ...         time.sleep(0.002)
        >>> prediction = predict(Recording.load(path), Changes(workers=2))
        >>> prediction.workers, prediction.recorded.computing < 1
        (2, True)
    """
    changes = Changes() if changes is None else changes
    return _predict(_Recorded(recording, changes, batches), changes)


def grid(recording: Recording, changes: Changes | None = None) -> list[Prediction]:
    """Predict a run for no worker, 1, 2, 4 and so on, with several prefetches, and with batches as they come.

    The first prediction is the one without workers. The recorded setting is among them.

    Raises:
        BadOption, BadRecording: as `predict` does.
    """
    changes = Changes() if changes is None else changes
    recorded = _Recorded(recording, changes, GRID_BATCHES)
    most = min(64, max(2 * recorded.workers, recorded.cores or 0, 8))
    workers = sorted({recorded.workers, *(1 << power for power in range(7) if 1 << power <= most)} - {0})
    deliveries = [(prefetch, True) for prefetch in sorted({recorded.prefetch, 2, 8})] + [(recorded.prefetch, False)]
    chosen = [replace(changes, workers=0)]
    chosen += [
        replace(changes, workers=count, prefetch=prefetch, in_order=in_order)
        for count in workers
        for prefetch, in_order in deliveries
    ]
    return [_predict(recorded, one) for one in chosen]


def best(predictions: Sequence[Prediction]) -> Prediction:
    """Return the one with the fewest workers, and then the least prefetch, among those that are about the fastest.

    Predictions with another order than that of the first are left out: training may depend on the order.

    Where making a batch takes no longer than handing it over, that is the one without workers, if it is there: what the
    training process spends on taking batches over, workers cannot have.
    """
    alone = [one for one in predictions if not one.workers]
    loads = [replace(load_of(one.recorded), make_s=one.predicted.make_s) for one in alone]
    if any(load.is_cheap for load in loads):
        return alone[0]
    usual = [one for one in predictions if one.in_order == predictions[0].in_order]
    enough = max(one.predicted.samples_per_s for one in usual) / LEAST_GAIN
    as_good = [one for one in usual if one.predicted.samples_per_s >= enough]
    return min(as_good, key=lambda one: (one.workers, one.prefetch))


class _Recorded:
    """The steady part of a recorded run, with the times that change. Nanoseconds throughout.

    Args:
        recording: of the run.
        changes: what is different, of which it looks at times only.
        most: how many batches are gone through.
    """

    def __init__(self, recording: Recording, changes: Changes, most: int) -> None:
        self.most = most
        settings = recording.settings
        self.engine = str(settings.get("engine", ""))
        self.workers = int(settings.get("workers", recording.counters.get("workers", 0)))
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
                f"The recording has {len(numbers)} batches of which all times are known, besides those of the start; "
                f"{_FEW} is the least from which something can be said. Record a longer run."
            )
        rows = {name: column[numbers] for name, column in recording.rows.items()}
        self.own, self.between = _own(rows), round(_between(rows))
        self.alone = self.own[False] * (0 if self.workers else 1)
        """What next() takes besides making a batch, if there are no workers; in two parts, as in `own`."""
        if not self.workers:
            self.own = {late: own + np.array([_HANDOVER_NS, 0]) for late, own in self.own.items()}
            self.between = _HANDOVER_NS
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
        longest = max(_LONGEST * float(np.median(batches)), _LONGEST_NS)
        self.is_cut = float(batches.max()) > longest
        """True if batches took longer than is gone through."""
        self.batches = np.minimum(_some(batches, most), longest)
        """How long a worker takes for each batch, in order, if no other worker needs its core. What other programs held
        up stays in."""

    def _steady(self, recording: Recording) -> tuple[NDArray[np.int64], Period]:
        """Return which rows are not of the start of an epoch, and their figures."""
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
    """Return no more than so many values: of more, those of parts from all over the run."""
    if len(column) <= most:
        return column
    length = max(1, most // _STRETCHES)
    starts = np.linspace(0, len(column) - length, max(1, most // length)).astype(np.int64)
    found: _Column = column[(starts[:, None] + np.arange(length)).ravel()]
    return found


def _start(first: NDArray[np.int64], window: int) -> int:
    """Return how many rows of an epoch belong to its start: until all workers have answered, and a window was used."""
    answered = np.flatnonzero(first)
    until_all = 1 + int(answered[-1]) if len(answered) else 1
    return max(until_all, min(window, len(first) // 4))


def _own(rows: Columns) -> dict[bool, NDArray[np.int64]]:
    """Return what next() takes besides waiting for workers: for batches that were waited for (True), and for others.

    In two parts: until the batch has come, and until it is delivered. Whoever waits has to be woken.
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
    """Return how long a worker takes, on average, from one batch to the next that was waiting for it already."""
    order = np.lexsort((rows["began"], rows["worker"]))
    worker, given, began, finished = (rows[name][order] for name in ("worker", "given", "began", "finished"))
    waiting = (worker[1:] == worker[:-1]) & (worker[1:] >= 0) & (given[1:] <= finished[:-1])
    between = np.maximum(began[1:] - finished[:-1], 0)[waiting]
    return float(between.mean()) if len(between) else 0.0


def _at_work(rows: Columns) -> NDArray[np.int64]:
    """Return for each batch how many workers were at one when it was begun, with its own."""
    began, finished = np.sort(rows["began"]), np.sort(rows["finished"])
    begun, ended = (np.searchsorted(moments, rows["began"], "right") for moments in (began, finished))
    found: NDArray[np.int64] = np.maximum(begun - ended, 1)
    return found


def _computing(rows: Columns) -> float | None:
    """Return the share of their time that workers computed, that without a core left out; None if it is not known."""
    timed = rows["computed"] >= 0
    spent = (rows["finished"] - rows["began"] - rows["queued"])[timed].sum()
    return float(rows["computed"][timed].sum() / max(spent, 1)) if timed.any() else None


def _named(recording: Recording, numbers: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return how long the batches of these rows were in stages that have a name of the user's."""
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
    """Return the times of stages after the changes, and by how much longer each batch takes."""
    stages = {name: rows[name].astype(float) for name in _STAGES}
    known = {**stages, "fetch": stages["fetch"] - stages["transform"], **named}
    more = np.zeros(len(rows["got"]))
    for name, factor in changes.stages.items():
        if name not in known or not known[name].any():
            there = ", ".join(one for one, spent in known.items() if spent.any()) or "none"
            raise BadOption(
                f"The recording knows no time of the stage {name!r}, only of {there}. A stage is timed by name inside "
                f'of: with feedline.stage("{name}").'
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
            f"The recorded training loop took no time between batches, and {changes.step:g} times nothing is nothing. "
            "Give the time of a step instead (step_s=, --step 50ms)."
        )
    return steps.astype(np.float64) * changes.step if len(steps) else np.zeros(1)


def _predict(recorded: _Recorded, changes: Changes) -> Prediction:
    workers = recorded.workers if changes.workers is None else changes.workers
    prefetch = recorded.prefetch if changes.prefetch is None else changes.prefetch
    in_order = recorded.in_order if changes.in_order is None else changes.in_order
    count = max(len(recorded.samples), min(_LEAST, recorded.most))
    warm = max(1, min(workers * prefetch, recorded.most))
    if workers:
        scenario = Scenario(
            samples=warm + count,
            batch_size=None,
            workers=workers,
            depth=prefetch,
            order=IN_ORDER if in_order else UNORDERED,
            moves=recorded.moves,
            deepens=recorded.comes_in_messages,  # as loaders do, while batches take no time
            batch_s=InTurn(tuple(((recorded.batches + recorded.between) / 1e9).tolist())),
            start_s=0.0,
            cores=recorded.cores,
            computing=recorded.computing,
        )
        times = _go_through(scenario, recorded)
    else:
        times = _go_through_alone(warm + count, recorded)
    columns = _columns(times, recorded)
    totals = Totals(int(columns["got"][warm - 1]))
    totals.fold({name: column[warm:] for name, column in columns.items()}, in_order=in_order)
    assumptions = tuple(_assumptions(recorded, workers, is_given=changes.computing is not None))
    is_delivered_alike = not workers or (prefetch, in_order) == (recorded.prefetch, recorded.in_order)
    return Prediction(
        workers,
        prefetch,
        in_order,
        period_of(totals, workers),
        recorded.period,
        assumptions,
        is_recorded=workers == recorded.workers and is_delivered_alike,
    )


_Times = list[tuple[int, int, int, int, int, int, int]]
"""Of batches as they are delivered: which, by whom, begun when, made how long, asked for, come and got when."""


def _go_through(scenario: Scenario, recorded: _Recorded) -> _Times:
    """Go through an epoch with workers, in virtual time."""
    world = World(scenario, scenario.workers, Share(), Trace(0), random.Random(0))
    world.begin(0)
    times: _Times = []
    for place in range(scenario.samples):
        asked = round(world.now_s * 1e9)
        ordinal, _ = world.next()  # a sample is its own index, and a batch is a sample
        made = world.delivered
        began, busy = made.task_times[0] + recorded.between, made.busy_ns - recorded.between
        own = recorded.own[began + busy > asked]
        transfer, deliver = own[place % len(own)].tolist()
        came = round(world.now_s * 1e9) + transfer
        times.append((ordinal, made.worker, began, busy, asked, came, came + deliver))
        world.pass_time((transfer + deliver + recorded.steps[place % len(recorded.steps)]) / 1e9)
    world.close()
    return times


def _go_through_alone(count: int, recorded: _Recorded) -> _Times:
    """Go through an epoch without workers: the training loop makes every batch when it asks for it."""
    times: _Times = []
    asked = 0
    for place in range(count):
        busy = round(recorded.batches[place % len(recorded.batches)])
        came = asked + busy
        got = came + int(recorded.alone[place % len(recorded.alone)].sum())
        times.append((place, -1, asked, busy, asked, came, got))
        asked = got + round(recorded.steps[place % len(recorded.steps)])
    return times


def _columns(times: _Times, recorded: _Recorded) -> dict[str, NDArray[np.int64]]:
    """Return what a recording would hold of these batches."""
    ordinal, worker, began, busy, asked, came, got = np.array(times, np.int64).T
    places = ordinal % len(recorded.samples)
    columns = columns_of([row()] * len(times))
    columns |= {"ordinal": ordinal, "worker": worker, "samples": recorded.samples[places]}
    columns |= {"given": began, "began": began, "finished": began + busy, "came": came, "asked": asked, "got": got}
    columns["body"][1:] = asked[1:] - got[:-1]
    longer = busy / recorded.batches[places]
    columns |= {name: (spent[places] * longer).astype(np.int64) for name, spent in recorded.stages.items()}
    settle_order(columns)
    return columns


def _assumptions(recorded: _Recorded, workers: int, *, is_given: bool) -> Iterator[str]:
    """Say what a prediction rests on, where that can be wrong."""
    cores, computing = recorded.cores, recorded.computing
    if cores is None and workers > 1:
        yield "The recording does not say how many cores there are: every worker is taken to have one."
    elif cores is not None and max(workers, recorded.workers) * computing > cores:
        share = f"compute {percent(computing)} of a batch's time, and share {counted(cores, 'core')}"
        if is_given:
            yield f"Workers are taken to {share}."
        elif recorded.was_timed:
            yield f"Workers {share}: their CPU time was measured."
        else:
            yield (
                f"Workers are taken to {share}: the recording does not hold their CPU time. If they wait for storage, "
                "give a smaller share (--computing 0.2), or record the run again."
            )
    if recorded.is_cut:
        yield f"Batches that took more than {_LONGEST:,} times as long as most count as that long."
    if recorded.engine == "thread" and workers > recorded.workers:
        yield "Threads share the interpreter's lock. What more of them have to wait for it is not known, and left out."
    if workers and float(np.median(recorded.batches)) < _SHORT_NS:
        yield (
            "Batches are made in less than a millisecond. To send and to wait for them weighs as much, and varies with "
            "the machine: take this as rough."
        )
    if workers and not recorded.workers:
        yield (
            "The run was recorded without workers. Handing a batch over is taken to cost a worker "
            f"{_HANDOVER_NS / 1e6:g} ms, and the training process as much."
        )
