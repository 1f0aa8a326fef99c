"""Chooses a loader's settings among those that were measured: the fewest workers that are enough, and why. Pure.

A setting is enough if it comes within 5 % of the highest rate; with the time of a training step, if training does not
wait. Of those with equally few workers, processes are chosen before threads, which share the interpreter with the
training loop, and then the least prefetching.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from feedline.insight.stats import shown
from feedline.insight.worker_model import LEAST_GAIN, Load
from feedline.system.shown import counted
from feedline.system.sizes import bytes_text

STALL = 0.01
"""The share of its time that a training loop may wait."""
PREFETCH = 2
"""The default of `prefetch_factor`."""
_CLOSE = 1.3
"""A setting that took so many times as long as the best may yet come within 5 % of it. A guess."""
_MOST_PER_CORE = 8
_MEMORY_SHARE = 0.25
"""Share of the available memory that prefetched batches may use."""


@dataclass(frozen=True)
class Setting:
    """The settings of a loader that are measured; `engine` is one of feedline's, or "torch" for torch's loader."""

    engine: str
    workers: int
    prefetch: int = PREFETCH
    is_pinned: bool = False

    def __str__(self) -> str:
        if self.workers == 0:
            return "no workers" + (" (torch)" if self.engine == "torch" else "")
        more = "" if self.prefetch == PREFETCH else f", prefetch {self.prefetch}"
        return f"{counted(self.workers, 'worker')} ({self.engine}{more}{', pinned' if self.is_pinned else ''})"

    def code(self, first: str) -> str:
        """Return the loader as Python code; `first` holds its first arguments."""
        given = [first, f"num_workers={self.workers}"]
        given += [f'engine="{self.engine}"'] if self.workers else []
        given += [f"prefetch_factor={self.prefetch}"] if self.prefetch != PREFETCH else []
        return f"DataLoader({', '.join(given)})"


@dataclass(frozen=True)
class Rate:
    """What was measured of a setting."""

    samples_per_s: float
    stall: float = 0.0
    """The share of its time that the training loop waited for batches to be made."""
    is_disturbed: bool = False
    """True if other programs used the cores during every measurement."""


@dataclass(frozen=True)
class Limits:
    """How many workers, and how many prefetched batches, are worth trying."""

    workers: int
    batches: int
    reason: str
    """Why no more workers are tried, in words."""

    @classmethod
    def of(cls, load: Load, memory_bytes: int | None, batch_bytes: int) -> Limits:
        """Return the limits that the cores, the memory and the training step set.

        Args:
            load: the cost of making a batch, the time of a training step (0 for none), and the number of cores.
            memory_bytes: the available memory; None if unknown.
            batch_bytes: size of a batch.
        """
        cores, cpu_share = int(load.cores), load.cpu_s / max(load.make_s, 1e-9)
        batches = int((memory_bytes or 1 << 62) * _MEMORY_SHARE) // max(batch_bytes, 1)
        limits = [
            (
                min(load.most, _MOST_PER_CORE * cores),
                f"they gain nothing on {counted(cores, 'core')}, as making a batch computes for {cpu_share:.0%} of "
                "its time",
            ),
            (
                max(1, batches // PREFETCH),
                f"workers x prefetch x {bytes_text(batch_bytes)} for a batch must fit into a quarter of "
                f"{bytes_text(memory_bytes or 0)} of memory",
            ),
        ]
        if load.step_s:
            enough = 2 * math.ceil(load.make_s / load.step_s)
            limits.append((enough, f"half as many make a batch per step of {shown(load.step_s)}"))
        most, reason = min(limits)
        return cls(most, max(batches, PREFETCH), reason)

    def counts(self) -> list[int]:
        """Return the numbers of workers to try: none, one, twice as many as before, up to the limit."""
        doubled = [1 << power for power in range(self.workers.bit_length()) if 1 << power < self.workers]
        return [0, *doubled, self.workers]


def settings(counts: Sequence[int], engines: Sequence[str]) -> list[Setting]:
    """Return a setting for each number of workers and each engine; without workers, feedline's engine is inline."""
    found = []
    for workers in dict.fromkeys(counts):
        for engine in engines:
            found.append(Setting("inline" if workers == 0 and engine != "torch" else engine, workers))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Choice:
    """The chosen setting, if there is one, and the reasons in at most three sentences."""

    setting: Setting | None
    reasons: list[str]


def choose(rates: Mapping[Setting, Rate], limit: str, *, step_s: float = 0.0) -> Choice:
    """Choose among feedline's settings; none, if other programs disturbed the measurements that decide.

    Args:
        rates: what was measured; not empty.
        limit: why no more workers were tried, in words.
        step_s: the time of a training step; 0 for the highest rate.
    """
    fastest = max(rates, key=lambda setting: rates[setting].samples_per_s)
    chosen = fewest(rates, step_s=step_s)
    rate = rates[chosen]
    if rates[fastest].is_disturbed or rate.is_disturbed:
        return Choice(None, ["No recommendation: other programs kept the cores busy. Run it again on a quiet machine."])
    keeps_up = step_s > 0 and rate.stall < STALL
    if keeps_up:
        why = f"With {chosen} training waits for {rate.stall:.1%} of its time, at steps of {shown(step_s)}."
    elif step_s:
        why = (
            f"Nothing keeps up with steps of {shown(step_s)}: with {chosen} training still waits for {rate.stall:.0%} "
            "of its time, so make samples faster (`feedline doctor`)."
        )
    else:
        why = f"{rate.samples_per_s:,.0f} samples/s with {chosen}, the fewest within 5 % of the highest rate."
    reasons = [why]
    if fewer := [setting for setting in rates if setting.workers < chosen.workers]:
        best = max(fewer, key=lambda setting: rates[setting].samples_per_s)
        reasons.append(f"Fewer workers are not enough: {_compared(best, rates, chosen, step_s)}.")
    more = [setting for setting in rates if setting.workers > chosen.workers]
    if more and not keeps_up:
        best = max(more, key=lambda setting: rates[setting].samples_per_s)
        gain = "gain little" if rates[best].samples_per_s >= rate.samples_per_s else "are slower"
        reasons.append(f"More {gain}: {_compared(best, rates, chosen, step_s)}.")
    elif not keeps_up:
        reasons.append(f"More were not tried: {limit}.")
    return Choice(chosen, reasons)


def fewest(rates: Mapping[Setting, Rate], *, step_s: float = 0.0) -> Setting:
    """Return the setting with the fewest workers that is enough."""
    best = max(rate.samples_per_s for rate in rates.values())
    enough = [setting for setting, rate in rates.items() if step_s and rate.stall < STALL]
    enough = enough or [setting for setting, rate in rates.items() if rate.samples_per_s * LEAST_GAIN >= best]
    return min(enough, key=lambda setting: (setting.workers, setting.engine == "thread", setting.prefetch))


def contenders(rates: Mapping[Setting, Rate]) -> list[Setting]:
    """Return the settings that could still be chosen if they were measured again."""
    best = max((rate.samples_per_s for rate in rates.values()), default=0.0)
    return [setting for setting, rate in rates.items() if rate.samples_per_s * _CLOSE >= best]


def _compared(setting: Setting, rates: Mapping[Setting, Rate], chosen: Setting, step_s: float) -> str:
    rate = rates[setting]
    if step_s:
        return f"with {setting} training waits for {rate.stall:.1%} of its time"
    gain = rate.samples_per_s / max(rates[chosen].samples_per_s, 1e-9) - 1
    return f"{rate.samples_per_s:,.0f} samples/s with {setting} ({gain:+.0%})"
