"""Measure loaders side by side: interleaved rounds, a clock that only runs in steady state, medians and spreads.

A benchmark describes `Entry` objects (one loader configuration each) and hands them to `run_rounds`, which

1. runs every entry once untimed: that warms files, allocators and clock rates, and finds peak memory;
2. then goes round by round over all entries (A B A B ...), opening a fresh loader each time;
3. repeats a measurement during which other programs used more than `max_other_cores`, up to `repeats` times,
   and marks it when none was quiet. Marked rounds stay out of medians and ratios while there are quiet ones.

The clock of one measurement starts when `Span.margin` batches have been consumed and stops as many before the end of
the epoch, or when enough was counted. The window of prefetched batches is full at both ends, so nothing that was
made before the clock started is counted for free. An epoch too short for that is followed by more epochs, with the
clock stopped in between; starting up is a question of its own (`w4_start`).
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from benchmarks import machine

TORCH = "torch"
FEEDLINE = "feedline"

Case = dict[str, str | int]
"""What tells one configuration from another, apart from the loader: dataset, worker count and the like."""

Figures = dict[str, float | None]
"""What one measurement found, by name."""


class SizedIterable(Protocol):
    """What the harness needs of a loader."""

    num_workers: int
    prefetch_factor: int | None

    def __len__(self) -> int: ...

    # Any: a batch is whatever the workload's dataset makes of its samples.
    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
class Side:
    """One of the loaders compared: torch's, or feedline's with one of its engines."""

    library: str
    engine: str | None = None

    @property
    def name(self) -> str:
        """The name shown in tables and rows."""
        return self.library if self.engine is None else f"{self.library}/{self.engine}"

    # Any: the arguments of torch's DataLoader, passed through as they are.
    def open(self, dataset: object, **arguments: Any) -> SizedIterable:
        """Construct this side's loader; the class and feedline's engine are the only difference between sides."""
        if self.library == TORCH:
            from torch.utils.data import DataLoader as TorchLoader

            torch_loader: SizedIterable = TorchLoader(dataset, **arguments)  # type: ignore[arg-type]
            return torch_loader
        from feedline import DataLoader

        loader: SizedIterable = DataLoader(dataset, **arguments, engine=self.engine)  # type: ignore[arg-type]
        return loader


def sides(worker_count: int, engines: Sequence[str]) -> list[Side]:
    """List what is compared at this worker count; without workers every engine is the inline one."""
    chosen = ["inline"] if worker_count == 0 else list(dict.fromkeys(engines))
    return [Side(TORCH), *(Side(FEEDLINE, engine) for engine in chosen)]


# Any: loader arguments as `Side.open` takes them.
def worker_arguments(
    worker_count: int, *, start_method: str | None = None, prefetch: int | None = None
) -> dict[str, Any]:
    """Build the arguments both loaders get for their workers; workers stay for all epochs of one measurement."""
    if worker_count == 0:
        return {"num_workers": 0}
    arguments: dict[str, Any] = {"num_workers": worker_count, "persistent_workers": True}
    if start_method is not None:
        arguments["multiprocessing_context"] = start_method
    if prefetch is not None:
        arguments["prefetch_factor"] = prefetch
    return arguments


@dataclass(frozen=True)
class Span:
    """How much of a loader one measurement counts."""

    seconds: float
    """Count at least this long."""
    batches: int = 1
    """Count at least this many batches."""
    warmup: int = 8
    """Batches left out at both ends of an epoch; more where the window of prefetched batches asks for it."""

    def margin(self, worker_count: int, prefetch: int | None = None) -> int:
        """Tell how many batches are left out at either end: twice what the workers may have made ahead, or more."""
        return max(self.warmup, 2 * worker_count * (prefetch or 2))


@dataclass(frozen=True)
class Settings:
    """The settings of `run_rounds` that the command line offers."""

    rounds: int = 5
    """Timed rounds over all entries."""
    repeats: int = 3
    """How often a measurement that others disturbed is repeated."""
    max_other_cores: float = 0.1
    """Load of other programs, in cores, above which a measurement counts as disturbed."""


def nothing_to_finish() -> None:
    """Return at once: the consumer leaves no work running."""


@dataclass(frozen=True)
class Entry:
    """One configuration to measure."""

    case: Case
    """What is the same for all sides: dataset, consumer, worker count."""
    side: Side
    open: Callable[[], SizedIterable]
    """Construct the loader."""
    # Any: a batch, see SizedIterable.
    consume: Callable[[Any], None]
    """Do what the training loop does with a batch."""
    batch_size: int
    finish: Callable[[], None] = nothing_to_finish
    """Wait for work that `consume` left running, on a GPU say, before the clock is read."""


@dataclass
class Outcome:
    """All rounds of one entry."""

    case: Case
    side: Side
    rounds: list[Figures] = field(default_factory=list)
    peak_pss_mb: float | None = None

    @property
    def disturbed_count(self) -> int:
        """How many rounds other programs disturbed in all their repeats, as far as can be told."""
        return sum(_disturbed(figures) for figures in self.rounds)


class Meter:
    """A stop watch that also reads the CPU time of this program's processes; may be started many times."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0
        self.cpu_s = 0.0
        self.parent_cpu_s = 0.0
        self.consumer_cpu_s = 0.0
        self._pids: list[int] = []
        self._began: tuple[float | None, dict[int, float], float] | None = None
        self._ended: tuple[float | None, dict[int, float], float] | None = None

    def find_processes(self) -> None:
        """List the processes to watch; slow, so do it well before `start`."""
        self._pids = machine.process_tree()

    def start(self) -> None:
        """Run the clock."""
        self._cpu_before = machine.cpu_seconds(self._pids)
        self._parent_before = time.process_time()
        self._consumer_before = time.thread_time()
        self._before = time.perf_counter()
        if self._began is None:
            self._began = machine.busy_seconds(), self._cpu_before, self._before

    def running_s(self) -> float:
        """Tell the time counted so far, while the clock runs."""
        return self.elapsed_s + time.perf_counter() - self._before

    def stop(self) -> None:
        """Halt the clock and add up."""
        now = time.perf_counter()
        self.consumer_cpu_s += time.thread_time() - self._consumer_before
        self.parent_cpu_s += time.process_time() - self._parent_before
        cpu = machine.cpu_seconds(self._pids)
        self._ended = machine.busy_seconds(), cpu, now
        self.elapsed_s += now - self._before
        self.cpu_s += machine.cpu_used(self._cpu_before, cpu)

    def other_cores(self) -> float | None:
        """Tell the load of other programs between the first start and the last stop."""
        if self._began is None or self._ended is None or self._began[0] is None or self._ended[0] is None:
            return None
        own = machine.cpu_used(self._began[1], self._ended[1])
        return machine.other_cores(self._ended[0] - self._began[0], own, self._ended[2] - self._began[2])


@contextmanager
def expected_warnings() -> Iterator[None]:
    """Keep torch's advice against more workers than cores off the screen: several questions ask for just that."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def measure(entry: Entry, span: Span) -> Figures:
    """Open the entry's loader, count one span of it in steady state, close it."""
    loader = entry.open()
    try:
        return _count(loader, entry, span)
    finally:
        close(loader)


def peak_pss_mb(entry: Entry, span: Span, *, every_s: float = 0.05) -> float | None:
    """Run the entry untimed and return the highest summed PSS seen between two batches, in MB."""
    loader = entry.open()
    margin = span.margin(loader.num_workers, loader.prefetch_factor)
    peak, seconds, last = None, 0.0, time.perf_counter()
    try:
        for count, batch in enumerate(loader, start=1):
            entry.consume(batch)
            now = time.perf_counter()
            enough = seconds + now - last >= span.seconds and count >= span.batches + margin
            if now - last >= every_s or enough:
                peak = max(peak or 0, machine.pss_bytes() or 0) or None
                seconds, last = seconds + now - last, time.perf_counter()
            if enough:
                break
        entry.finish()
        peak = max(peak or 0, machine.pss_bytes() or 0) or None
    finally:
        close(loader)
    return None if peak is None else peak / 1e6


def close(loader: SizedIterable) -> None:
    """End a loader's workers now: feedline has a word for it, torch's end with their last reference."""
    closing = getattr(loader, "close", None)
    if closing is not None:
        closing()
    elif (iterator := getattr(loader, "_iterator", None)) is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
    gc.collect()


def run_rounds(
    entries: Sequence[Entry], span: Span, settings: Settings, *, step: Callable[[str], None] = lambda _: None
) -> list[Outcome]:
    """Measure all entries, interleaved; `step` is told what is about to be measured."""
    outcomes = [Outcome(entry.case, entry.side) for entry in entries]
    short = Span(span.seconds / 4, batches=max(1, span.batches // 4), warmup=span.warmup)
    with expected_warnings():
        for entry, outcome in zip(entries, outcomes, strict=True):
            step(f"memory and warm-up: {_title(entry)}")
            outcome.peak_pss_mb = peak_pss_mb(entry, short)
        pairs = list(zip(entries, outcomes, strict=True))
        for number in range(settings.rounds):
            # Every other round backwards: whoever comes after a slow one finds another machine than the first of all.
            for entry, outcome in pairs if number % 2 == 0 else pairs[::-1]:
                step(f"round {number + 1} of {settings.rounds}: {_title(entry)}")
                outcome.rounds.append(undisturbed(partial(measure, entry, span), settings))
    return outcomes


def undisturbed(measurement: Callable[[], Figures], settings: Settings) -> Figures:
    """Repeat a measurement while others disturb it; return the first quiet one, or the quietest with a mark."""
    tries: list[Figures] = []
    for attempt in range(settings.repeats + 1):
        if attempt:
            machine.wait_for_quiet(settings.max_other_cores, patience_s=5.0)
        figures = measurement()
        load = figures.get("other_cores")
        if load is None or load <= settings.max_other_cores:
            return {**figures, "disturbed": 0.0, "repeats": float(attempt)}
        tries.append(figures)
    quietest = min(tries, key=lambda figures: figures["other_cores"] or 0.0)
    return {**quietest, "disturbed": 1.0, "repeats": float(settings.repeats)}


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of a figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Summarise the values that are known; None when none is."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


def spread(outcome: Outcome, figure: str) -> Spread | None:
    """Summarise one figure of an outcome; disturbed rounds are left out unless all are."""
    quiet = [figures for figures in outcome.rounds if not _disturbed(figures)]
    return Spread.of(figures.get(figure) for figures in quiet or outcome.rounds)


def ratio(outcome: Outcome, base: Outcome, figure: str, *, lower_is_better: bool = False) -> Spread | None:
    """Compare two outcomes round by round; above 1 always means that `outcome` is better.

    Rounds in which either was disturbed are left out, unless that would leave none.
    """
    rounds = list(zip(outcome.rounds, base.rounds, strict=True))
    quiet = [(ours, theirs) for ours, theirs in rounds if not (_disturbed(ours) or _disturbed(theirs))]
    pairs = [(ours.get(figure), theirs.get(figure)) for ours, theirs in quiet or rounds]
    if lower_is_better:
        pairs = [(theirs, ours) for ours, theirs in pairs]
    return Spread.of(over / under for over, under in pairs if over is not None and under)


def torch_at_same_case(outcome: Outcome, outcomes: Iterable[Outcome]) -> Outcome | None:
    """Find torch's outcome in the same case."""
    return next((other for other in outcomes if other.side.library == TORCH and other.case == outcome.case), None)


def torch_at_its_best(outcome: Outcome, outcomes: Iterable[Outcome], figure: str) -> Outcome | None:
    """Find torch's best outcome over all worker counts measured; torch is often fastest without workers."""
    rest = _without_workers(outcome.case)
    rivals = [other for other in outcomes if other.side.library == TORCH and _without_workers(other.case) == rest]
    ranked = [(found.median, other) for other in rivals if (found := spread(other, figure)) is not None]
    return max(ranked, key=lambda pair: pair[0])[1] if ranked else None


def own_inline(outcome: Outcome, outcomes: Iterable[Outcome]) -> Outcome | None:
    """Find the same library's outcome without workers: workers that are slower than none are a fault."""
    wanted = {**outcome.case, "workers": 0}
    return next((o for o in outcomes if o.side.library == outcome.side.library and o.case == wanted), None)


def _count(loader: SizedIterable, entry: Entry, span: Span) -> Figures:
    margin = span.margin(loader.num_workers, loader.prefetch_factor)
    countable = len(loader) - 2 * margin - 1
    if countable < 1:
        raise ValueError(
            f"an epoch of {len(loader)} batches leaves nothing to count: {margin} are left out at both ends. "
            f"Lower --warmup, use fewer workers, or make the dataset longer."
        )
    meter, waits = Meter(), list[int]()
    clock, consume = time.perf_counter_ns, entry.consume
    enough = False
    while not enough:
        iterator = iter(loader)
        consume(next(iterator))
        if not waits:
            meter.find_processes()
        for _ in range(margin):
            consume(next(iterator))
        meter.start()
        left = span.seconds - meter.elapsed_s
        deadline = clock() + int(left * 1e9)
        for _ in range(countable):
            asked = clock()
            batch = next(iterator)
            got = clock()
            waits.append(got - asked)
            consume(batch)
            if got >= deadline and len(waits) >= span.batches:
                enough = True
                break
        entry.finish()
        meter.stop()
        if not enough:
            for batch in iterator:
                consume(batch)
        del iterator
    return _figures(meter, waits, entry.batch_size, first_batch=margin + 1)


def _figures(meter: Meter, waits: list[int], batch_size: int, *, first_batch: int) -> Figures:
    batches, samples = len(waits), len(waits) * batch_size
    waits.sort()
    return {
        "seconds": meter.elapsed_s,
        "batches": float(batches),
        "first_batch": float(first_batch),
        "batches_per_s": batches / meter.elapsed_s,
        "samples_per_s": samples / meter.elapsed_s,
        "cpu_s_per_1000": meter.cpu_s / samples * 1000,
        "consumer_cpu_us": meter.consumer_cpu_s / batches * 1e6,
        "parent_cpu_us": meter.parent_cpu_s / batches * 1e6,
        "wait_p50_us": waits[batches // 2] / 1e3,
        "wait_p99_us": waits[min(batches - 1, int(batches * 0.99))] / 1e3,
        "other_cores": meter.other_cores(),
    }


def _disturbed(figures: Figures) -> bool:
    return figures.get("disturbed") == 1.0


def _title(entry: Entry) -> str:
    return " ".join([entry.side.name, *(f"{name}={value}" for name, value in entry.case.items())])


def _without_workers(case: Case) -> Case:
    return {name: value for name, value in case.items() if name != "workers"}
