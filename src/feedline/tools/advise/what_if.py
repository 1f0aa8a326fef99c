"""Predicts how a recorded run would have gone with other settings or faster stages.

The real core replays the recorded times of batches and training steps, in their order and in virtual time
(`feedline.simulation`). Predictions are about the steady part of a run: both the predicted and the recorded figures
leave out the start of epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from feedline.insight.batch_rows import Totals, columns_of, note_overtaken, row
from feedline.insight.period import Period, period_of
from feedline.insight.recording import Recording
from feedline.insight.verdict import load_of
from feedline.insight.worker_model import LEAST_GAIN
from feedline.simulation.scenario import IN_ORDER, UNORDERED, InTurn, Scenario
from feedline.simulation.world import World
from feedline.system.shown import counted, percent
from feedline.tools.advise.recorded_run import HANDOVER_NS, LONGEST, Changes, RecordedRun
from feedline.types import JsonObject

__all__ = ["GRID_BATCHES", "Changes", "Prediction", "best", "grid", "predict"]

_LEAST, _MOST = 500, 4000
"""Batches to simulate. With fewer, the first and the last ones weigh too much; more change nothing."""
GRID_BATCHES = 500
"""Batches to simulate for each setting of a grid, so that a grid takes a few seconds: a batch takes 0.1 to 0.2 ms, and
a grid has 13 to 29 settings."""
_SHORT_NS = 1_000_000


@dataclass(frozen=True)
class Prediction:
    """A predicted run beside the recorded one; both without the start of epochs."""

    workers: int
    prefetch: int
    in_order: bool
    predicted: Period
    recorded: Period
    assumptions: tuple[str, ...] = ()
    """The assumptions of the prediction that may be wrong, as sentences."""
    is_recorded: bool = False
    """True if workers, prefetch and order are the same as in the recorded run."""

    @property
    def delivery(self) -> str:
        """How workers deliver batches, in words; empty without workers."""
        if not self.workers:
            return ""
        return f"prefetch {self.prefetch}" + ("" if self.in_order else ", any order")

    def as_dict(self) -> JsonObject:
        """Return the prediction for programs."""
        return {
            "workers": self.workers,
            "prefetch": self.prefetch,
            "in_order": self.in_order,
            "predicted": self.predicted.as_dict(),
            "recorded": self.recorded.as_dict(),
            "assumptions": list(self.assumptions),
        }


def predict(recording: Recording, changes: Changes | None = None, *, batches: int = _MOST) -> Prediction:
    """Predict how a recorded run would go with changes.

    Faults, memory budgets and batches that the program keeps are ignored. The cost of sending batches between processes
    is a guess if the recorded run had no workers.

    Args:
        recording: the recorded run.
        changes: the changes; None for no change.
        batches: the most batches to simulate. From a longer run, parts from all over it are taken.

    Raises:
        BadOption: a change concerns a stage that is not in the recording, or scales steps that took no time.
        BadRecording: the recording is too short.

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
    return _predict(RecordedRun(recording, changes, batches), changes)


def grid(recording: Recording, changes: Changes | None = None) -> list[Prediction]:
    """Predict a run without workers and with 1, 2, 4 and so on, with several prefetches, and unordered.

    The first prediction is the one without workers. The recorded setting is included.

    Raises:
        BadOption, BadRecording: like `predict`.
    """
    changes = Changes() if changes is None else changes
    recorded = RecordedRun(recording, changes, GRID_BATCHES)
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
    """Return the prediction with the fewest workers, then the least prefetch, among those close to the fastest.

    Predictions whose order differs from the first one's are left out: training may depend on the order.

    If making a batch takes no longer than handing it over, this is the prediction without workers, if there is one:
    workers do not save the training process the work of receiving batches.
    """
    alone = [one for one in predictions if not one.workers]
    loads = [replace(load_of(one.recorded), make_s=one.predicted.make_s) for one in alone]
    if any(load.is_cheap for load in loads):
        return alone[0]
    usual = [one for one in predictions if one.in_order == predictions[0].in_order]
    enough = max(one.predicted.samples_per_s for one in usual) / LEAST_GAIN
    as_good = [one for one in usual if one.predicted.samples_per_s >= enough]
    return min(as_good, key=lambda one: (one.workers, one.prefetch))


def _predict(recorded: RecordedRun, changes: Changes) -> Prediction:
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
            deepens=recorded.comes_in_messages,  # as loaders do while batches take no time
            batch_s=InTurn(tuple(((recorded.batches + recorded.between) / 1e9).tolist())),
            start_s=0.0,
            cores=recorded.cores,
            computing=recorded.computing,
        )
        times = _simulate(scenario, recorded)
    else:
        times = _simulate_alone(warm + count, recorded)
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
"""Batches as delivered: ordinal, worker, when begun, busy time, when requested, when arrived, when delivered."""


def _simulate(scenario: Scenario, recorded: RecordedRun) -> _Times:
    """Simulate an epoch with workers, in virtual time."""
    world = World(scenario)
    world.begin()
    times: _Times = []
    for place in range(scenario.samples):
        asked = round(world.now_s * 1e9)
        ordinal = world.next()  # a sample is its own index, and a batch is one sample
        made = world.delivered
        began, busy = made.task_times[0] + recorded.between, made.busy_ns - recorded.between
        own = recorded.own[began + busy > asked]
        transfer, deliver = own[place % len(own)].tolist()
        came = round(world.now_s * 1e9) + transfer
        times.append((ordinal, made.worker, began, busy, asked, came, came + deliver))
        world.pass_time((transfer + deliver + recorded.steps[place % len(recorded.steps)]) / 1e9)
    world.close()
    return times


def _simulate_alone(count: int, recorded: RecordedRun) -> _Times:
    """Simulate an epoch without workers: the training loop makes every batch when it needs it."""
    times: _Times = []
    asked = 0
    for place in range(count):
        busy = round(recorded.batches[place % len(recorded.batches)])
        came = asked + busy
        got = came + int(recorded.alone[place % len(recorded.alone)].sum())
        times.append((place, -1, asked, busy, asked, came, got))
        asked = got + round(recorded.steps[place % len(recorded.steps)])
    return times


def _columns(times: _Times, recorded: RecordedRun) -> dict[str, NDArray[np.int64]]:
    """Return the columns that a recording of these batches would have."""
    ordinal, worker, began, busy, asked, came, got = np.array(times, np.int64).T
    places = ordinal % len(recorded.samples)
    columns = columns_of([row()] * len(times))
    columns |= {"ordinal": ordinal, "worker": worker, "samples": recorded.samples[places]}
    columns |= {"given": began, "began": began, "finished": began + busy, "came": came, "asked": asked, "got": got}
    columns["body"][1:] = asked[1:] - got[:-1]
    longer = busy / recorded.batches[places]
    columns |= {name: (spent[places] * longer).astype(np.int64) for name, spent in recorded.stages.items()}
    note_overtaken(columns)
    return columns


def _assumptions(recorded: RecordedRun, workers: int, *, is_given: bool) -> Iterator[str]:
    """Yield the assumptions of a prediction that may be wrong."""
    cores, computing = recorded.cores, recorded.computing
    if cores is None and workers > 1:
        yield "The recording does not contain the number of cores. Every worker is assumed to have one."
    elif cores is not None and max(workers, recorded.workers) * computing > cores:
        share = f"compute {percent(computing)} of a batch's time, and share {counted(cores, 'core')}"
        if is_given:
            yield f"Workers are assumed to {share}."
        elif recorded.was_timed:
            yield f"Workers {share}: their CPU time was measured."
        else:
            yield (
                f"Workers are assumed to {share}: the recording does not contain their CPU time. If they wait for "
                "storage, give a smaller share (--computing 0.2), or record the run again."
            )
    if recorded.is_cut:
        yield f"Batches that took very long are cut to {LONGEST:,} times the median."
    if recorded.engine == "thread" and workers > recorded.workers:
        yield "Threads share the interpreter's lock. How long more of them would wait for it is unknown and left out."
    if workers and float(np.median(recorded.batches)) < _SHORT_NS:
        yield (
            "The prediction is rough: batches are made in less than a millisecond. Sending and waiting for them takes "
            "about as long, and varies with the machine."
        )
    if workers and not recorded.workers:
        yield (
            "The run was recorded without workers. Handing over a batch is assumed to cost a worker "
            f"{HANDOVER_NS / 1e6:g} ms, and the training process as much."
        )
