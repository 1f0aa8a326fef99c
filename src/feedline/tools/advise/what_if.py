"""What if: how a recorded run would go with other settings, with faster training steps, or with faster batches.

The real core replays the recorded times of batches and training steps, in their order and in virtual time
(`feedline.simulation`). Predictions, and the recorded figures beside them, leave out the starts of epochs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadRecording
from feedline.insight.attribution import Columns
from feedline.insight.recording import Recording
from feedline.insight.verdict import cores_of, load_of, moves_of
from feedline.insight.worker_model import HANDOVER_S, LEAST_GAIN
from feedline.memory.codec import SMALL_BYTES
from feedline.simulation.scenario import IN_ORDER, UNORDERED, InTurn, Scenario, contention
from feedline.simulation.world import World
from feedline.system.shown import counted, percent

GRID_BATCHES = 500
"""Batches to simulate for each prediction: more change little. A batch takes 0.1 to 0.2 ms."""
_FEW = 10
"""Minimum number of batches in a recording, besides those of the start. A guess."""
_LONGEST, _LONGEST_S = 1000, 0.1
"""The longest time of a batch in a prediction: a multiple of the median, or seconds if that is more. The core looks for
other work several times per median while a batch is late: a damaged recording would keep it busy forever."""
_STRETCHES = 10
"""A long run is sampled in this many parts: a single part may be slower or faster than the rest."""
_MOST_WORKERS = 1024
_SHORT_S = 1e-3


@dataclass(frozen=True)
class Prediction:
    """A predicted run, without the starts of epochs."""

    workers: int
    """0 for none: the training loop makes batches itself."""
    prefetch: int
    in_order: bool
    samples_per_s: float
    stall: float
    """The share of the time in which training would wait."""
    busy: float
    """The share of the time in which the workers would make batches."""
    is_recorded: bool = False
    """True for the settings of the recorded run."""
    speedup: str = ""
    """What was twice as fast as recorded: "training step" or "batches"; empty for neither."""

    @property
    def change(self) -> str:
        """What was changed besides the number of workers, in words."""
        if self.speedup:
            return f"{self.speedup} twice as fast"
        return f"prefetch {self.prefetch}" + ("" if self.in_order else ", any order")


class RecordedRun:
    """The steady part of a recorded run, to predict others from. Times are in seconds.

    Faults, memory budgets and batches that the program keeps are ignored. The cost of sending batches between processes
    is a guess if the recorded run had no workers.

    Raises:
        BadRecording: the recording is too short.
    """

    def __init__(self, recording: Recording) -> None:
        settings = recording.settings
        self.engine = str(settings.get("engine", ""))
        self.workers = int(settings["workers"] if "workers" in settings else recording.counters.get("workers", 0))
        self.prefetch = int(settings.get("prefetch") or 2)
        self.in_order = bool(settings.get("in_order", True))
        self.moves = moves_of(settings)
        self.cores: int | None = cores_of(settings) or None
        if not (0 <= self.workers <= _MOST_WORKERS and self.prefetch >= 1):
            raise BadRecording(f"No prediction for {self.workers} workers that prefetch {self.prefetch} batches each.")
        self.load = load_of(recording.stats().judged, self.cores or 0)
        numbers = self._steady(recording)
        steps = recording.rows["body"][numbers]
        self.steps = _some(steps[steps >= 0] / 1e9) if (steps >= 0).any() else np.zeros(1)
        """How long each training step took."""
        numbers = numbers[recording.rows["finished"][numbers] != 0]
        if len(numbers) < _FEW:
            raise BadRecording(
                f"The recording is too short for a prediction: besides the start, it has {len(numbers)} batches with "
                f"all their times, and at least {_FEW} are needed. Record a longer run."
            )
        rows = {name: column[numbers] for name, column in recording.rows.items()}
        late, ready = _own(rows)
        handover_s = 0.0 if self.workers else HANDOVER_S
        self.late, self.ready, self.alone = late + handover_s, ready + handover_s, 0.0 if self.workers else ready
        """Time of next() besides waiting for workers, on average: for batches that it waited for, for those that were
        ready, and without workers."""
        self.between = _between(rows) + handover_s
        """Time between two batches of a worker."""
        order = np.lexsort((rows["ordinal"], rows["epoch"]))
        rows = {name: column[order] for name, column in rows.items()}
        self.samples = _some(rows["samples"].astype(float))
        self.comes_in_messages = int(rows["bytes"].max()) <= SMALL_BYTES
        computing = _computing(rows)
        self.was_timed = computing is not None
        """True if the workers' CPU time was recorded. Otherwise, they are assumed to compute all the time."""
        self.computing = 1.0 if computing is None else min(1.0, computing)
        """The share of a batch's time in which its worker computes; for the rest it waits, and needs no core."""
        batches = np.maximum((rows["finished"] - rows["began"]) / 1e9, 1e-9)
        if self.cores is not None and self.workers:
            batches /= contention(_at_work(rows), self.cores, self.computing)
        longest = max(_LONGEST * float(np.median(batches)), _LONGEST_S)
        self.is_cut = float(batches.max()) > longest
        """True if batches took longer than allowed and were cut."""
        self.batches = np.minimum(_some(batches), longest)
        """How long a worker takes for each batch, in order, if no other worker needs its core. Delays caused by other
        programs are included."""

    def _steady(self, recording: Recording) -> NDArray[np.int64]:
        """Return the numbers of the rows after the start of each epoch, and set the figures of that time."""
        rows, spans = recording.rows, recording.epochs
        found, elapsed, waited = [np.zeros(0, np.int64)], 0, 0
        for number, span in enumerate(spans, 1):
            end = spans[number].row if number < len(spans) else len(rows["got"])
            begin = span.row + _start(rows["first"][span.row : end], self.workers * self.prefetch)
            if begin < end:
                got, asked = rows["got"][begin:end], rows["asked"][begin:end]
                elapsed += int(got.max() - rows["got"][begin - 1])
                waited += int((got - asked).sum())
                found.append(np.arange(begin, end))
        numbers = np.concatenate(found)
        self.samples_per_s = float(rows["samples"][numbers].sum()) / max(elapsed / 1e9, 1e-9)
        self.stall = min(1.0, waited / max(elapsed, 1))
        """The recorded figures."""
        return numbers

    # -- predictions -------------------------------------------------------------------------------------------------

    def predict(
        self,
        *,
        workers: int | None = None,
        prefetch: int | None = None,
        in_order: bool | None = None,
        speedup: str = "",
    ) -> Prediction:
        """Predict the run with other settings; None keeps what was recorded.

        Args:
            workers: how many workers; 0 for none.
            prefetch: batches per worker.
            in_order: False to deliver batches as they come.
            speedup: "training step" or "batches": what takes half as long as recorded.
        """
        workers = self.workers if workers is None else workers
        prefetch = self.prefetch if prefetch is None else prefetch
        in_order = self.in_order if in_order is None else in_order
        batches = self.batches * (0.5 if speedup == "batches" else 1)
        steps = self.steps * (0.5 if speedup == "training step" else 1)
        if workers:
            rate, stall, busy = self._with_workers(workers, prefetch, in_order, batches, steps)
        else:
            waited_s = float(batches.mean()) + self.alone
            elapsed_s = waited_s + float(steps.mean())
            rate, stall, busy = float(self.samples.mean()) / elapsed_s, waited_s / elapsed_s, 0.0
        is_alike = not workers or (prefetch, in_order) == (self.prefetch, self.in_order)
        is_recorded = workers == self.workers and is_alike and not speedup
        return Prediction(workers, prefetch, in_order, rate, stall, busy, is_recorded, speedup)

    def _with_workers(
        self, workers: int, prefetch: int, in_order: bool, batches: NDArray[np.float64], steps: NDArray[np.float64]
    ) -> tuple[float, float, float]:
        """Return the rate, the share of waiting and the share of making batches, from an epoch in virtual time."""
        warm = min(workers * prefetch, GRID_BATCHES)
        scenario = Scenario(
            samples=warm + GRID_BATCHES,
            batch_size=None,
            workers=workers,
            depth=prefetch,
            order=IN_ORDER if in_order else UNORDERED,
            moves=self.moves,
            deepens=self.comes_in_messages,  # as loaders do while batches take no time
            batch_s=InTurn(tuple((batches + self.between).tolist())),
            start_s=0.0,
            cores=self.cores,
            computing=self.computing,
        )
        world = World(scenario)
        world.begin()
        begun_s = waited_s = busy_s = samples = 0.0
        for place in range(scenario.samples):
            asked_s = world.now_s
            ordinal = world.next()  # a sample is its own index, and a batch is one sample
            made = world.delivered
            is_late = (made.task_times[0] + made.busy_ns) / 1e9 > asked_s
            world.pass_time(self.late if is_late else self.ready)
            if place == warm - 1:
                begun_s = world.now_s
            elif place >= warm:
                ended_s = world.now_s
                waited_s += ended_s - asked_s
                busy_s += made.busy_ns / 1e9 - self.between
                samples += float(self.samples[ordinal % len(self.samples)])
            world.pass_time(float(steps[place % len(steps)]))
        world.close()
        elapsed_s = max(ended_s - begun_s, 1e-9)
        return samples / elapsed_s, min(1.0, waited_s / elapsed_s), min(1.0, busy_s / elapsed_s / workers)

    def grid(self) -> list[Prediction]:
        """Predict the run without workers, and with 1, 2, 4 and so on, with several prefetches, and in any order.

        The first prediction is the one without workers. The recorded settings are included.
        """
        found = [self.predict(workers=0)]
        for count in self._counts():
            found += [
                self.predict(workers=count, prefetch=each, in_order=True) for each in sorted({self.prefetch, 2, 8})
            ]
            found.append(self.predict(workers=count, in_order=False))
        return found

    def twice_as_fast(self) -> list[Prediction]:
        """Predict the run with all numbers of workers of the grid, if steps or batches took half as long."""
        speedups = ("training step", "batches")
        return [self.predict(workers=count, speedup=one) for count in (0, *self._counts()) for one in speedups]

    def _counts(self) -> list[int]:
        most = min(64, max(2 * self.workers, self.cores or 0, 8))
        return sorted({self.workers, *(1 << power for power in range(7) if 1 << power <= most)} - {0})

    def best(self, predictions: Sequence[Prediction]) -> Prediction:
        """Return the prediction with the fewest workers, then the least prefetch, among those close to the fastest.

        Another order than the recorded one is left out: training may depend on it. Where making a batch takes no longer
        than handing it over, it is the prediction without workers: they do not save the training process the work of
        receiving batches.
        """
        usual = [one for one in predictions if one.in_order == self.in_order]
        if self.load.is_cheap:
            return usual[0]
        enough = max(one.samples_per_s for one in usual) / LEAST_GAIN
        as_good = [one for one in usual if one.samples_per_s >= enough]
        return min(as_good, key=lambda one: (one.workers, one.prefetch))

    def compared(self, one: Prediction) -> str:
        """Return a prediction beside the recorded figures, in words."""
        settings = "num_workers=0"
        if one.workers:
            settings = f"num_workers={one.workers}, prefetch_factor={one.prefetch}"
            settings += "" if one.in_order else ", in_order=False"
        speedup = f", {one.change}" if one.speedup else ""
        times = one.samples_per_s / max(self.samples_per_s, 1e-9)
        busy = f", and workers would be busy {percent(one.busy, 1)} of it" if one.workers else ""
        return (
            f"{settings}{speedup}: {one.samples_per_s:,.0f} samples/s predicted, {times:.2f} times the recorded "
            f"{self.samples_per_s:,.0f}. Training would wait {percent(one.stall, 1)} of the time (recorded: "
            f"{percent(self.stall, 1)}){busy}."
        )

    def assumptions(self, predictions: Sequence[Prediction]) -> Iterator[str]:
        """Yield how far the prediction of the recorded run is off, and what the others assume, in sentences."""
        most = max(one.workers for one in predictions)
        for one in predictions:
            if one.is_recorded:
                error = abs(one.samples_per_s / max(self.samples_per_s, 1e-9) - 1)
                yield f"For the settings of this run, the prediction is {percent(error, 1)} off."
        if self.cores is not None and max(most, self.workers) * self.computing > self.cores:
            known = "as measured" if self.was_timed else "an assumption, since no CPU time was recorded"
            share = f"compute {percent(self.computing)} of a batch's time ({known})"
            yield f"Workers {share}, and share {counted(self.cores, 'core')}."
        if self.is_cut:
            yield f"Batches that took very long are cut to {_LONGEST:,} times the median."
        if self.engine == "thread" and most > self.workers:
            yield "How long more threads would wait for the interpreter's lock is unknown and left out."
        if float(np.median(self.batches)) < _SHORT_S:
            yield "For batches of less than a millisecond, predictions are rough: sending them takes about as long."
        if not self.workers:
            yield (
                "The run was recorded without workers. Handing over a batch is assumed to cost a worker "
                f"{HANDOVER_S * 1e3:g} ms, and the training process as much."
            )


# -- the recorded times ------------------------------------------------------------------------------------------------


def _some(column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return at most `GRID_BATCHES` values; from a longer column, take parts from all over the run."""
    if len(column) <= GRID_BATCHES:
        return column
    length = max(1, GRID_BATCHES // _STRETCHES)
    starts = np.linspace(0, len(column) - length, max(1, GRID_BATCHES // length)).astype(np.int64)
    found: NDArray[np.float64] = column[(starts[:, None] + np.arange(length)).ravel()]
    return found


def _start(first: NDArray[np.int64], window: int) -> int:
    """Return how many rows belong to an epoch's start: until all workers have answered and a window is used up."""
    answered = np.flatnonzero(first)
    until_all = 1 + int(answered[-1]) if len(answered) else 1
    return max(until_all, min(window, len(first) // 4))


def _own(rows: Columns) -> tuple[float, float]:
    """Return the mean time of next() besides waiting, for batches that it waited for and for others.

    They differ: a thread that waits must first wake up.
    """
    asked, got, finished = rows["asked"], rows["got"], rows["finished"]
    alone = rows["worker"] < 0
    since = np.where(alone, asked + finished - rows["began"], np.maximum(asked, finished))
    own = np.maximum(got - since, 0) / 1e9
    waited = (finished > asked) & ~alone
    late = own[waited] if waited.any() else own
    ready = own[~waited] if not waited.all() else np.maximum(got - np.maximum(rows["came"], since), 0) / 1e9
    return float(late.mean()), float(ready.mean())


def _between(rows: Columns) -> float:
    """Return the mean time between two batches of a worker, if the second was already assigned."""
    order = np.lexsort((rows["began"], rows["worker"]))
    worker, given, began, finished = (rows[name][order] for name in ("worker", "given", "began", "finished"))
    waiting = (worker[1:] == worker[:-1]) & (worker[1:] >= 0) & (given[1:] <= finished[:-1])
    between = np.maximum(began[1:] - finished[:-1], 0)[waiting]
    return float(between.mean()) / 1e9 if len(between) else 0.0


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
