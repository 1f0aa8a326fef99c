"""Measures a user's dataset with many settings within a given time: torch's loader and feedline's engines, interleaved.

The loaders must be endless, as `feedline.tools.measure.target` makes them, so that short datasets can be measured, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from feedline.datasets.derived.objects import users_traceback
from feedline.errors import DatasetFailed
from feedline.system.failures import words
from feedline.tools.measure import load
from feedline.tools.measure.harness import (
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
from feedline.tools.measure.steady import Span, Steady, touch

ENDLESS = 1 << 40
_COUNTED_SHARE = 0.5
"""Share of a measurement's time that is counted: starting workers takes time, too."""
_LONGEST_S = 1.0


# Any, throughout: datasets, loader arguments and batches of any kind.
@dataclass(frozen=True)
class Grid:
    """The settings to try, in all combinations."""

    workers: Sequence[int]
    engines: Sequence[str]
    prefetch: Sequence[int] = ()
    """Empty for the default of both loaders."""
    pins: Sequence[bool] = ()
    """Whether memory is pinned; empty where there is no GPU."""

    def settings(self) -> Iterator[tuple[Case, Side, dict[str, object]]]:
        """Yield each case with each of its sides, and their arguments."""
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
    """A span that leaves out few batches: if the consumer takes every batch at once, none is made ahead."""

    def margin(self, worker_count: int, prefetch: int | None = None) -> int:
        """Return how many batches to leave out: one per worker, as workers do not start at the same moment."""
        return max(worker_count, 1)


@dataclass(frozen=True)
class Work:
    """What all loaders of a grid share: the dataset, the arguments and the training loop."""

    dataset: Any
    options: Mapping[str, Any]
    batch_size: int
    step_s: float = 0.0
    """How long the training loop sleeps after each batch."""

    def steady(
        self, side: Side, options: Mapping[str, Any], seconds: float, sums: Callable[[object], dict[str, float]]
    ) -> Steady:
        """Return a loader to measure for some seconds, and for at least two batches per worker."""
        opened = partial(side.open, self.dataset, **self.options, **options)
        span = _Short(seconds, batches=2 * max(options["num_workers"], 1))
        return Steady(opened, self._train, self.batch_size, span, ENDLESS, sums=sums)

    def _train(self, batch: object) -> None:
        touch(batch)
        if self.step_s:
            time.sleep(self.step_s)


@dataclass(frozen=True)
class Failure:
    """An exception raised by a loader."""

    text: str
    traceback: str
    """With the user's frames."""

    @classmethod
    def of(cls, exc: BaseException) -> Failure:
        """Return an exception as text, for another process in which its class may be unknown."""
        text = f"{type(exc).__name__}: {words(exc)}".strip()
        lines = text.splitlines()
        # In torch's text about a worker's exception, the exception itself comes last.
        return cls(lines[-1 if ": Caught " in lines[0] else 0], users_traceback(exc))


def nothing_measured(failures: Mapping[Any, Failure], seconds: float) -> DatasetFailed:
    """Return the error for a run without results: the exception of the first setting, or a lack of time."""
    for setting, failure in failures.items():
        return DatasetFailed(f"No setting could be measured. {setting}: {failure.text}", "raises", failure.traceback)
    return DatasetFailed(f"Nothing could be measured within {seconds:g} s. Allow more time with --seconds.", "hangs")


def skipped(failures: Mapping[Any, Failure]) -> str:
    """Return a line for each exception, with all settings that raised it.

    Example:
        >>> print(skipped({"1 worker": Failure("OSError: full", ""), "2 workers": Failure("OSError: full", "")}))
        Skipped 1 worker, 2 workers: OSError: full
    """
    settings: dict[str, list[str]] = {}
    for setting, failure in failures.items():
        settings.setdefault(failure.text, []).append(str(setting))
    return "".join(f"Skipped {', '.join(names)}: {text}\n" for text, names in settings.items())


@dataclass
class Measured:
    """The results of a grid."""

    outcomes: list[Outcome] = field(default_factory=list)
    failures: dict[str, Failure] = field(default_factory=dict)
    """By the title of the entry."""

    def complete(self) -> list[Outcome]:
        """Return the measured outcomes, each with as many rounds as all of them have."""
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
    """Measure all settings, interleaved; call `step` with a title before each, and `keep` with all results after each.

    A measurement that would exceed `seconds` is not started. A setting whose loader raises is left out from then on.
    """
    until_s = time.monotonic() + seconds
    chosen = list(grid.settings())
    counted_s = min(_LONGEST_S, _COUNTED_SHARE * seconds / len(chosen) / (settings.rounds + 1))
    measured = Measured()
    peaks: list[list[int]] = [[] for _ in chosen]
    entries = []
    for (case, side, options), seen in zip(chosen, peaks, strict=True):
        entry = Entry(case, side, work.steady(side, options, counted_s, partial(_note_memory, seen)).measure)
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
        except (Exception, SystemExit) as exc:  # raised by user code, feedline or torch
            failures[entry.title] = Failure.of(exc)
    return {}


def _note_memory(seen: list[int], loader: object) -> dict[str, float]:
    """Note the memory of all processes, just before and just after the clock runs; add no sums."""
    seen += [found] if (found := load.pss_bytes()) is not None else []
    return {}


def waited(loader: Any) -> dict[str, float]:
    """Return how long the training loop has waited for batches to be made, as reported by feedline's loader.

    The time to hand over a finished batch does not count: more workers would not reduce it.
    """
    waits = loader.stats().total.waits
    return {"making_s": sum(seconds for cause, seconds in waits.items() if cause not in ("transfer", "deliver"))}
