"""Measures configurations side by side: interleaved rounds, medians and spreads.

A benchmark describes `Entry` objects (one configuration of one side each) and hands them to `run_rounds`, which

1. warms every entry up, untimed: files, allocators, clock rates;
2. then goes round by round over all entries (A B A B ...), opening a fresh loader or program each time;
3. marks a measurement during which other programs used more than `max_other_cores`. Marked rounds stay out of medians
   and ratios while there are quiet ones.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from feedline.system.socket_folder import use_short_paths
from feedline.tools.measure import load

TORCH = "torch"
FEEDLINE = "feedline"

Case = dict[str, str | int]
"""The values that distinguish configurations, apart from the loader: dataset, worker count and the like."""

Figures = dict[str, float | None]
"""The results of one measurement, by name."""


class LoaderLike(Protocol):
    """The part of a loader's interface that the harness needs: torch's, feedline's or another library's loader."""

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

    # object: the arguments of torch's DataLoader, passed through as they are.
    def open(self, dataset: object, **arguments: object) -> LoaderLike:
        """Construct this side's loader; the class and feedline's engine are the only difference between sides."""
        if self.library == TORCH:
            from torch.utils.data import DataLoader as TorchLoader

            use_short_paths()  # its workers create sockets, which feedline's do not need
            torch_loader: LoaderLike = TorchLoader(dataset, **arguments)  # type: ignore[arg-type]
            return torch_loader
        from feedline import DataLoader

        loader: LoaderLike = DataLoader(dataset, **arguments, engine=self.engine)  # type: ignore[arg-type]
        return loader


def sides(worker_count: int, engines: Sequence[str]) -> list[Side]:
    """List the sides to compare at this worker count; without workers, feedline's engine is always the inline one."""
    chosen = ["inline"] if worker_count == 0 else list(dict.fromkeys(engines))
    return [Side(TORCH), *(Side(FEEDLINE, engine) for engine in chosen)]


# object: loader arguments as `Side.open` takes them.
def worker_arguments(
    worker_count: int, *, start_method: str | None = None, prefetch: int | None = None
) -> dict[str, object]:
    """Return the arguments for the workers of both loaders; workers stay for all epochs of one measurement."""
    arguments = {"persistent_workers": True, "multiprocessing_context": start_method, "prefetch_factor": prefetch}
    given = {name: value for name, value in arguments.items() if value is not None and worker_count}
    return {"num_workers": worker_count, **given}


@dataclass(frozen=True)
class Loading:
    """How one of the loaders is to be opened."""

    workers: int
    batch_size: int
    engine: str | None = None
    """feedline's engine; None for other loaders."""
    start_method: str | None = None
    prefetch: int | None = None

    @property
    def options(self) -> dict[str, object]:
        """The arguments that torch's loader and feedline's have in common."""
        workers = worker_arguments(self.workers, start_method=self.start_method, prefetch=self.prefetch)
        return {"batch_size": self.batch_size, **workers}

    # object: a dataset, and arguments of torch's DataLoader.
    def open(self, dataset: object, **arguments: object) -> LoaderLike:
        """Open feedline's loader if there is an engine, and otherwise torch's."""
        side = Side(TORCH if self.engine is None else FEEDLINE, self.engine)
        return side.open(dataset, **{**self.options, **arguments})


@dataclass(frozen=True)
class Settings:
    """The settings of `run_rounds` that the command line offers."""

    rounds: int = 5
    """Timed rounds over all entries."""
    max_other_cores: float = 0.1
    """Load of other programs, in cores, above which a measurement counts as disturbed."""


def nothing() -> None:
    """Return at once: there is nothing to warm up, or nothing left to wait for."""


@dataclass(frozen=True)
class Entry:
    """One configuration to measure."""

    case: Case
    """The values that all sides share: dataset, consumer, worker count."""
    side: Side
    measure: Callable[[], Figures]
    """Measure once, from the beginning."""
    warm_up: Callable[[], float | None] = nothing
    """Run once before all rounds; returns the highest summed PSS in MB, if that was read."""

    @property
    def title(self) -> str:
        """The configuration and its side, in one line."""
        return " ".join([self.side.name, *(f"{name}={value}" for name, value in self.case.items())])


@dataclass
class Outcome:
    """All rounds of one entry."""

    case: Case
    side: Side
    rounds: list[Figures] = field(default_factory=list)
    peak_pss_mb: float | None = None
    longest_s: float = 0.0
    """How long one measurement took at most, with the start of workers."""

    @property
    def disturbed_count(self) -> int:
        """The number of rounds that other programs disturbed, as far as is known."""
        return sum(_disturbed(figures) for figures in self.rounds)

    def spread(self, figure: str) -> Spread | None:
        """Summarise one figure; disturbed rounds are left out unless all are."""
        quiet = [figures for figures in self.rounds if not _disturbed(figures)]
        return Spread.of(figures.get(figure) for figures in quiet or self.rounds)


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of a figure over the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Summarise the known values; None if there are none."""
        known = [value for value in values if value is not None]
        return cls(statistics.median(known), min(known), max(known)) if known else None


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


def run_rounds(
    entries: Sequence[Entry],
    settings: Settings,
    outcomes: list[Outcome] | None = None,
    *,
    step: Callable[[str], None] = lambda _: None,
    keep: Callable[[], None] = nothing,
    until_s: float = math.inf,
    least: int = 0,
) -> list[Outcome]:
    """Measure all entries, interleaved, and return their outcomes.

    After the first `least` rounds, no measurement is started that would end after `until_s`, on the clock of
    `time.monotonic`.

    Args:
        entries: what to measure.
        settings: how often.
        outcomes: where to add the rounds, one for each entry; new ones if None.
        step: called with a title before each measurement.
        keep: called after each measurement.
        until_s: when to end.
        least: rounds that are measured in any case.
    """
    outcomes = outcomes or [Outcome(entry.case, entry.side) for entry in entries]
    pairs = list(zip(entries, outcomes, strict=True))
    with expected_warnings():
        for entry, outcome in pairs:
            if entry.warm_up is not nothing:
                step(f"warm-up: {entry.title}")
                outcome.peak_pss_mb = entry.warm_up()
        for number in range(settings.rounds):
            # Every other round runs backwards: an entry that follows a slow one finds the machine in another state.
            for entry, outcome in pairs if number % 2 == 0 else pairs[::-1]:
                began_s = time.monotonic()
                longest_s = max(found.longest_s for found in outcomes)
                if number >= least and began_s + longest_s > until_s:
                    return outcomes
                step(f"round {len(outcome.rounds) + 1}: {entry.title}")
                figures = entry.measure()
                others = figures.get("other_cores")
                is_disturbed = others is not None and others > settings.max_other_cores
                outcome.rounds.append({**figures, "disturbed": float(is_disturbed)})
                outcome.longest_s = max(outcome.longest_s, time.monotonic() - began_s)
                keep()
    return outcomes


def watched(measure: Callable[[], Figures]) -> Figures:
    """Measure something whose processes come and go: read the load of others just before and just after."""
    before = load.load_of_others()
    figures = measure()
    after = load.load_of_others()
    return {**figures, "other_cores": None if before is None or after is None else max(before, after)}


@contextmanager
def expected_warnings() -> Iterator[None]:
    """Hide torch's warning about more workers than cores: several benchmarks use more on purpose."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="This DataLoader will create")
        yield


def close(loader: LoaderLike) -> None:
    """End a loader's workers now: call `close`, or shut down the workers of torch's iterator."""
    closing = getattr(loader, "close", None)
    if closing is not None:
        closing()
    elif (iterator := getattr(loader, "_iterator", None)) is not None and hasattr(iterator, "_shutdown_workers"):
        iterator._shutdown_workers()
    gc.collect()


def _disturbed(figures: Figures) -> bool:
    return figures.get("disturbed") == 1.0
