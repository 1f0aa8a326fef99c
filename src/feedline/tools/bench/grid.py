"""A dataset of the user's with many settings: torch's loader and feedline's engines in turns, within a given time.

Its loaders must be endless, as `feedline.tools.tune.target` makes them, so that short datasets can be measured, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from feedline.datasets.objects import users_traceback
from feedline.errors import DatasetFailed
from feedline.system.failures import words
from feedline.tools.bench import load
from feedline.tools.bench.harness import (
    Case,
    Entry,
    Figures,
    Outcome,
    Settings,
    Side,
    run_rounds,
    sides,
    worker_arguments,
)
from feedline.tools.bench.steady import Span, Steady, touch

ENDLESS = 1 << 40
_COUNTED_SHARE = 0.5
"""Of the time that there is for a measurement: workers have to be started, too."""
_LONGEST_S = 1.0


# Any, throughout: datasets, arguments of loaders and batches of any kind.
@dataclass(frozen=True)
class Grid:
    """The settings that are tried with each other."""

    workers: Sequence[int]
    engines: Sequence[str]
    prefetch: Sequence[int] = ()
    """Empty for the default of both loaders."""
    pins: Sequence[bool] = ()
    """Whether memory is pinned; empty where there is no GPU."""

    def settings(self) -> Iterator[tuple[Case, Side, dict[str, Any]]]:
        """Yield each case with each of its sides, and the arguments for it."""
        for workers in dict.fromkeys(self.workers):
            depths: Sequence[int | None] = self.prefetch if self.prefetch and workers else [None]
            pins: Sequence[bool | None] = self.pins or [None]
            for depth in depths:
                for pin in pins:
                    case: Case = {"workers": workers}
                    options = worker_arguments(workers, prefetch=depth)
                    if self.prefetch:
                        case["prefetch"] = depth or "-"
                    if pin is not None:
                        case["pinned"] = "yes" if pin else "no"
                        options["pin_memory"] = pin
                    for side in sides(workers, self.engines):
                        yield case, side, options


class _Short(Span):
    """A span that leaves out little: whoever takes every batch at once finds none that was made ahead."""

    def margin(self, worker_count: int, prefetch: int | None = None) -> int:
        """Tell how many batches are left out: one of each worker, which do not begin at the same moment."""
        return max(worker_count, 1)


@dataclass(frozen=True)
class Work:
    """What all loaders have in common."""

    dataset: Any
    options: Mapping[str, Any]
    batch_size: int
    step_s: float = 0.0
    """For how long the training loop sleeps after each batch."""

    def steady(
        self, side: Side, options: Mapping[str, Any], seconds: float, sums: Callable[[Any], dict[str, float]]
    ) -> Steady:
        """Return a loader that is measured for some seconds, and for two batches of each worker at least."""
        opened = partial(side.open, self.dataset, **self.options, **options)
        span = _Short(seconds, batches=2 * max(options["num_workers"], 1))
        return Steady(opened, self._train, self.batch_size, span, ENDLESS, sums=sums)

    def _train(self, batch: Any) -> None:
        touch(batch)
        if self.step_s:
            time.sleep(self.step_s)


@dataclass(frozen=True)
class Failure:
    """What a loader raised."""

    text: str
    traceback: str
    """With the user's frames."""

    @classmethod
    def of(cls, exc: BaseException) -> Failure:
        """Return what can be told of an exception in another process, where it may not be known."""
        return cls(f"{type(exc).__name__}: {words(exc)}".partition("\n")[0], users_traceback(exc))


def nothing_measured(failures: Mapping[Any, Failure], seconds: float) -> DatasetFailed:
    """Say why there is nothing to show: what the first setting raised, or that there was no time."""
    for setting, failure in failures.items():
        return DatasetFailed(f"No setting could be measured. {setting}: {failure.text}", "raises", failure.traceback)
    return DatasetFailed(f"Nothing could be measured within {seconds:g} s. Give it more with --seconds.", "hangs")


@dataclass
class Measured:
    """What was measured of a grid."""

    outcomes: list[Outcome] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)
    """By the title of their entry."""

    def complete(self) -> list[Outcome]:
        """Return what has been measured, with as many rounds of each as all of them have."""
        done = [outcome for outcome in self.outcomes if outcome.rounds and "samples_per_s" in outcome.rounds[0]]
        count = min((len(outcome.rounds) for outcome in done), default=0)
        return [replace(outcome, rounds=outcome.rounds[:count]) for outcome in done]


def measure(
    grid: Grid,
    work: Work,
    settings: Settings,
    seconds: float,
    *,
    step: Callable[[str], None],
    keep: Callable[[Measured], None],
) -> Measured:
    """Measure all settings in turns; `step` is told what comes next, and `keep` gets what there is after each.

    What would take longer than `seconds` is not begun. A setting whose loader raises is left out from then on.
    """
    until_s = time.monotonic() + seconds
    chosen = list(grid.settings())
    counted_s = min(_LONGEST_S, _COUNTED_SHARE * seconds / len(chosen) / (settings.rounds + 1))
    measured = Measured()
    peaks: list[list[int]] = [[] for _ in chosen]
    entries = []
    for (case, side, options), seen in zip(chosen, peaks, strict=True):
        entry = Entry(case, side, work.steady(side, options, counted_s, partial(_look_at_memory, seen)).measure)
        entries.append(replace(entry, measure=partial(_guarded, measured.failures, entry)))

    def kept(outcomes: list[Outcome]) -> None:
        for outcome, seen in zip(outcomes, peaks, strict=True):
            outcome.peak_pss_mb = max(seen) / 1e6 if seen else None
        measured.outcomes = outcomes
        keep(measured)

    run_rounds(entries, settings, step=step, keep=kept, until_s=until_s)
    return measured


def _guarded(failures: dict[str, Failure], entry: Entry) -> Figures:
    if entry.title not in failures:
        try:
            return entry.measure()
        except (Exception, SystemExit) as exc:  # of the user's, of feedline's or of torch's
            failures[entry.title] = Failure.of(exc)
    return {}


def _look_at_memory(seen: list[int], loader: Any) -> dict[str, float]:
    """Note what all processes take, just before the clock runs and after it: it is part of no sum."""
    seen += [found] if (found := load.pss_bytes()) is not None else []
    return {}


def waited(loader: Any) -> dict[str, float]:
    """Tell for how long the training loop has waited for batches to be made, as feedline's loader knows it.

    What it takes to hand over a batch that is ready does not count: no worker would remove that.
    """
    waits = loader.stats().total.waits
    return {"making_s": sum(seconds for cause, seconds in waits.items() if cause not in ("transfer", "deliver"))}
