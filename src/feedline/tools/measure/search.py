"""Searches the settings of a loader: the fewest workers that are enough, and why. Pure: the caller measures.

Without a step time, a setting is enough if it comes within 5 % of the highest rate measured. With a step time, it is
enough if the training loop does not wait; if no setting achieves that, the first rule applies.

Workers are doubled as long as that gains, and then bisected between too few and enough. Processes are tried before
threads, and win if they need no more workers: threads share the interpreter with the training loop.

Each of these conclusions compares settings that were measured, so a search that ran out of time chooses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from feedline.insight.stats import shown
from feedline.insight.worker_model import LEAST_GAIN, Load
from feedline.system.shown import counted
from feedline.system.sizes import bytes_text

STALL = 0.01
"""The share of its time that a training loop may wait."""
DEPTH = 2
"""The default of `prefetch_factor`."""
_DEPTHS = (4, 8)
_BUSY_CORES = 0.25
"""If other programs use more cores than this, figures are doubtful."""
_MOST_PER_CORE = 8
_MEMORY_SHARE = 0.25
"""Share of the available memory that prefetched batches may use."""


@dataclass(frozen=True)
class Setting:
    """The settings that are searched."""

    engine: str
    workers: int
    depth: int = DEPTH

    def __str__(self) -> str:
        if self.workers == 0:
            return "no workers"
        more = "" if self.depth == DEPTH else f", prefetch {self.depth}"
        return f"{counted(self.workers, 'worker')} ({self.engine}{more})"

    def code(self, first: str) -> str:
        """Return the loader as Python code; `first` holds its first arguments."""
        given = [first, f"num_workers={self.workers}"]
        given += [f'engine="{self.engine}"'] if self.workers else []
        given += [f"prefetch_factor={self.depth}"] if self.depth != DEPTH else []
        return f"DataLoader({', '.join(given)})"


INLINE = Setting("inline", 0)


@dataclass(frozen=True)
class Rate:
    """The measurements of a setting."""

    samples_per_s: float
    stall: float = 0.0
    """The share of its time that the training loop waited for batches to be made."""
    other_cores: float = 0.0
    """How many cores other programs kept busy meanwhile."""

    @property
    def keeps_up(self) -> bool:
        """True if the training loop hardly ever waits."""
        return self.stall < STALL


@dataclass(frozen=True)
class Limits:
    """Upper limits of a search."""

    workers: int
    batches: int
    """Batches that may be prefetched."""
    reason: str
    """Why no more workers are possible, in words."""

    @classmethod
    def of(cls, load: Load, memory_bytes: int | None, batch_bytes: int) -> Limits:
        """Return the limits that cores and memory set.

        Args:
            load: the cost of making a batch, and the number of cores.
            memory_bytes: the available memory; None if unknown.
            batch_bytes: size of a batch.
        """
        cores, cpu_share = int(load.cores), load.cpu_s / max(load.make_s, 1e-9)
        most = min(load.most, _MOST_PER_CORE * cores)
        reason = (
            f"they gain nothing on {counted(cores, 'core')}, as making a batch computes for {cpu_share:.0%} of its time"
        )
        batches = int((memory_bytes or 1 << 62) * _MEMORY_SHARE) // max(batch_bytes, 1)
        if batches // DEPTH < most:
            most = max(1, batches // DEPTH)
            reason = (
                f"workers x prefetch x {bytes_text(batch_bytes)} for a batch must fit into a quarter of "
                f"{bytes_text(memory_bytes or 0)} of memory"
            )
        return cls(most, max(batches, DEPTH), reason)


@dataclass
class Choice:
    """The chosen setting, the reasons, and all settings that were tried."""

    setting: Setting | None
    """None if `missing` was not measured."""
    reasons: list[str]
    tried: dict[Setting, Rate]
    missing: Setting | None = None
    """The setting that the search needed next when its time was up."""


class OutOfTime(Exception):
    """No time is left to measure a setting."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(str(setting))
        self.setting = setting


_OUT_OF_TIME = (
    "No recommendation: the time was up before {} could be measured, and with it whatever the search would have tried "
    "next. Allow more time (--seconds)."
)

Measure = Callable[[Setting], Rate | None]
"""Measures a setting; returns None if that is impossible, and raises OutOfTime if no time is left."""


def search(measure: Measure, limits: Limits, *, step_s: float = 0.0) -> Choice | None:
    """Try settings until the fewest sufficient workers are known; None if none of them can be measured."""
    return _Search(measure, limits, step_s).run()


@dataclass
class _Search:
    _measure: Measure
    _limits: Limits
    _step_s: float
    _tried: dict[Setting, Rate] = field(default_factory=dict)
    _attempted: set[Setting] = field(default_factory=set)

    def run(self) -> Choice | None:
        try:
            chosen = self._choose()
        except OutOfTime as exc:
            return Choice(None, [_OUT_OF_TIME.format(exc.setting), *self._busy()], self._tried, exc.setting)
        if chosen is None:
            return None
        return Choice(chosen, self._reasons(chosen) + self._busy(), self._tried)

    def _choose(self) -> Setting | None:
        inline = self._rate(INLINE)
        if inline is None or not (self._step_s and inline.keeps_up):
            for engine in ("process", "thread"):
                self._double(engine)
            for engine in ("process", "thread"):
                self._bisect(engine)
        return self._deeper(self._fewest()) if self._tried else None

    def _rate(self, setting: Setting) -> Rate | None:
        if setting not in self._attempted:
            self._attempted.add(setting)
            if (rate := self._measure(setting)) is not None:
                self._tried[setting] = rate
        return self._tried.get(setting)

    def _double(self, engine: str) -> None:
        """Double the workers of an engine until they are enough or gain nothing."""
        most = self._limits.workers
        if self._step_s and any(rate.keeps_up for rate in self._tried.values()):
            most = min(most, self._fewest().workers - 1)  # with as many workers, the other engine wins
        workers, before = 1, 0.0
        while workers <= most and (rate := self._rate(Setting(engine, workers))) is not None:
            has_gained = rate.samples_per_s >= before * LEAST_GAIN
            if not has_gained or (self._step_s and rate.keeps_up) or workers == most:
                return
            before, workers = rate.samples_per_s, min(2 * workers, most)

    def _is_enough(self, rate: Rate) -> bool:
        if self._step_s and any(other.keeps_up for other in self._tried.values()):
            return rate.keeps_up
        return rate.samples_per_s * LEAST_GAIN >= self._best

    @property
    def _best(self) -> float:
        return max(rate.samples_per_s for rate in self._tried.values())

    def _fewest(self) -> Setting:
        enough = [setting for setting, rate in self._tried.items() if self._is_enough(rate)]
        return min(enough, key=lambda setting: (setting.workers, setting.engine == "thread"))

    def _bisect(self, engine: str) -> None:
        """Find the fewest workers of an engine that are enough, unless the other engine needs no more."""
        if not self._tried:
            return
        counts = {setting.workers: rate for setting, rate in self._tried.items() if setting.engine == engine}
        high = min((count for count, rate in counts.items() if self._is_enough(rate)), default=0)
        low = max((count for count in counts if count < high), default=0)
        while high - low > 1 and low + 1 < self._fewest().workers + (engine == "process"):
            middle = (low + high) // 2
            rate = self._rate(Setting(engine, middle))
            if rate is None:
                return
            low, high = (low, middle) if self._is_enough(rate) else (middle, high)

    def _deeper(self, chosen: Setting) -> Setting:
        """Increase the prefetch as long as that gains and memory allows, unless training does not wait anyway."""
        for depth in _DEPTHS:
            rate = self._tried[chosen]
            more = Setting(chosen.engine, chosen.workers, depth)
            is_done = chosen.workers == 0 or (self._step_s and rate.keeps_up)
            if is_done or chosen.workers * depth > self._limits.batches:
                break
            found = self._rate(more)
            if found is None or found.samples_per_s < rate.samples_per_s * LEAST_GAIN:
                break
            chosen = more
        return chosen

    def _reasons(self, chosen: Setting) -> list[str]:
        """Return the reasons for a setting as sentences."""
        rate = self._tried[chosen]
        reasons = []
        if self._step_s and rate.keeps_up:
            reasons.append(
                f"With {chosen} training waits for {rate.stall:.1%} of its time, at steps of {shown(self._step_s)}."
            )
        elif self._step_s:
            reasons.append(
                f"Nothing keeps up with steps of {shown(self._step_s)}: with {chosen} training still waits for "
                f"{rate.stall:.0%} of its time. Make samples faster: see `feedline doctor`."
            )
        else:
            reasons.append(f"Fastest with {chosen}: {rate.samples_per_s:,.0f} samples/s.")
        fewer = [s for s in self._tried if s.engine in (chosen.engine, "inline") and s.workers < chosen.workers]
        if fewer:
            less = max(fewer, key=lambda setting: setting.workers)
            reasons.append(f"Fewer are not enough: {self._comparison(less, rate)}.")
        more = [s for s in self._tried if s.engine == chosen.engine and s.workers > chosen.workers]
        if more and not (self._step_s and rate.keeps_up):
            next_more = min(more, key=lambda s: s.workers)
            is_slower = self._tried[next_more].samples_per_s < rate.samples_per_s
            reasons.append(f"More {'are slower' if is_slower else 'gain little'}: {self._comparison(next_more, rate)}.")
        elif chosen.workers == self._limits.workers and not rate.keeps_up:
            reasons.append(f"More were not tried: {self._limits.reason}.")
        others = [s for s in self._tried if s.engine not in (chosen.engine, "inline")]
        if others:
            best = max(others, key=lambda setting: self._tried[setting].samples_per_s)
            which = "The other engine at its best" if chosen.workers else "Workers at their best"
            reasons.append(f"{which}: {self._comparison(best, rate)}.")
        return reasons

    def _busy(self) -> list[str]:
        most = max((rate.other_cores for rate in self._tried.values()), default=0.0)
        warning = f"Other programs kept up to {most:.1f} cores busy meanwhile. Run it again on a quiet machine."
        return [warning] if most > _BUSY_CORES else []

    def _comparison(self, setting: Setting, chosen: Rate) -> str:
        rate = self._tried[setting]
        if self._step_s:
            return f"with {setting} training waits for {rate.stall:.1%} of its time"
        share = rate.samples_per_s / chosen.samples_per_s - 1
        return f"{rate.samples_per_s:,.0f} samples/s with {setting} ({share:+.0%})"
