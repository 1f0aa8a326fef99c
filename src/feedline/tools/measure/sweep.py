"""The sweep over a user's dataset: settings of a loader that may be best, in interleaved rounds within a given time.

`feedline bench` compares torch's loader and feedline's, `feedline tune` chooses one of feedline's settings. Workers are
doubled up to what the cores and the memory allow; more prefetching, and pinned memory if there is a GPU, are tried only
with the setting that was best in the first round. Without torch's loader, only settings that may still be chosen after
the first round are measured again. The loaders are endless, as `target` makes them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from feedline.datasets.derived.objects import users_traceback
from feedline.errors import DatasetFailed
from feedline.insight.worker_model import Load
from feedline.system.failures import words
from feedline.tools.measure import harness, load
from feedline.tools.measure.choice import PREFETCH, STALL, Limits, Rate, Setting, contenders, fewest, settings
from feedline.tools.measure.harness import FEEDLINE, TORCH, Case, Entry, Figures, Outcome, Settings, Side
from feedline.tools.measure.measured import headroom_now
from feedline.tools.measure.steady import Span, Steady, touch
from feedline.tools.measure.target import ENDLESS, Target, make_some, open_target

if TYPE_CHECKING:
    from feedline.tools.measure.isolated import Send

_COUNTED_S = 0.6
"""How long a measurement counts batches; enough to see what other programs use (`load.SHORTEST_LOAD_SPAN_S`)."""
_MORE_PREFETCH = (4, 8)
_CROWDED = 0.9
"""The share of all cores above which other programs are in the way."""


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


@dataclass
class Swept:
    """What a sweep has measured so far."""

    outcomes: dict[Setting, Outcome] = field(default_factory=dict)
    """Of all settings to be measured; without rounds until they are."""
    failures: dict[Setting, Failure] = field(default_factory=dict)
    limit: str = ""
    """Why no more workers are tried."""
    code: str = ""
    """The first arguments of the loader, as a user writes them."""
    is_loader: bool = False
    batch_size: int = 0
    batch_bytes: int = 0
    ended: str | None = None
    """Why the process that measured ended early, in words."""
    ended_in: str = ""

    @property
    def is_useful(self) -> bool:
        """True if any setting was measured."""
        return bool(self.measured())

    def measured(self) -> dict[Setting, Outcome]:
        """Return the outcomes of the settings that were measured, in the order of a table."""
        done = [one for one, found in self.outcomes.items() if found.rounds and one not in self.failures]
        return {one: self.outcomes[one] for one in sorted(done, key=lambda one: (one.workers, one.prefetch))}

    def whole_rounds(self) -> list[Outcome]:
        """Return the measured outcomes, each with as many rounds as all of them have, to be compared round by round."""
        done = self.measured().values()
        count = min((len(found.rounds) for found in done), default=0)
        return [replace(found, rounds=found.rounds[:count]) for found in done]

    def missing(self) -> list[Setting]:
        """Return the settings for which no time was left."""
        return [one for one, found in self.outcomes.items() if not found.rounds and one not in self.failures]

    def rates(self) -> dict[Setting, Rate]:
        """Return the rates of feedline's settings, the median of the undisturbed rounds."""
        rates = {}
        for setting, found in self.measured().items():
            rate, stall = found.spread("samples_per_s"), found.spread("stall")
            if rate is not None and stall is not None:
                rates[setting] = Rate(rate.median, stall.median, found.disturbed_count == len(found.rounds))
        return rates

    def skipped(self) -> str:
        """Return a line for each exception, with all settings that raised it."""
        named: dict[str, list[str]] = {}
        for setting, failure in self.failures.items():
            named.setdefault(failure.text, []).append(str(setting))
        return "".join(f"Skipped {', '.join(names)}: {text}\n" for text, names in named.items())


@dataclass(frozen=True)
class Sweep:
    """What to measure, and for how long."""

    source: str
    """The dataset or loader, as `module:object`."""
    seconds: float
    rounds: Settings
    engines: Sequence[str] = ("process", "thread")
    """Engines of feedline, and "torch" for torch's loader."""
    workers: Sequence[int] | None = None
    """None for none, 1, 2, 4 and so on, as many as the machine can run."""
    batch_size: int | None = None
    step_s: float = 0.0
    """How long the training loop sleeps after each batch."""

    def run(self, on_stage: Callable[[str], None]) -> Swept:
        """Measure in a process of its own, which is ended when the time is up; call `on_stage` before each measurement.

        Raises BadOption: there is no such dataset; DatasetFailed: nothing could be measured.
        """
        from feedline.tools.measure.isolated import watch  # can be imported on Linux only

        swept = watch(self.measure, Swept(), seconds=self.seconds, on_stage=on_stage)
        if swept.is_useful:
            return swept
        for setting, failure in swept.failures.items():
            raise DatasetFailed(f"Nothing could be measured. {setting}: {failure.text}", "raises", failure.traceback)
        late = f"Nothing could be measured within {self.seconds:g} s. Allow more time with --seconds."
        raise DatasetFailed(late, "hangs")

    def measure(self, send: Send) -> None:
        """Measure, and send parts of `Swept`."""
        until_s = time.monotonic() + self.seconds
        send("stage", "import")
        target = open_target(self.source, self.batch_size)
        send("stage", "samples")
        made, headroom = make_some(target, seconds=min(_COUNTED_S, self.seconds / 30)), headroom_now()
        cost = Load(made.batch_s, self.step_s, made.cpu_s, headroom.cores)
        limits = Limits.of(cost, headroom.memory_bytes, made.batch_bytes)
        planned = settings(limits.counts() if self.workers is None else self.workers, self.engines)
        about = {name: getattr(target, name) for name in ("code", "is_loader", "batch_size")}
        for name, value in {**about, "batch_bytes": made.batch_bytes, "limit": limits.reason}.items():
            send("part", name, value)
        has_gpu = TORCH in self.engines and torch.cuda.is_available()  # else CUDA is left alone: workers fork
        counted_s = min(_COUNTED_S, self.seconds / (4 * len(planned)))
        swept = Swept()

        def send_results() -> None:
            send("part", "failures", swept.failures)
            send("part", "outcomes", swept.outcomes)

        def run(chosen: Sequence[Setting], rounds: int) -> None:
            entries = [_Measured(setting, target, counted_s, self.step_s, swept).entry(has_gpu) for setting in chosen]
            for setting, entry in zip(chosen, entries, strict=True):
                swept.outcomes.setdefault(setting, Outcome(entry.case, entry.side))
            send_results()
            outcomes = [swept.outcomes[setting] for setting in chosen]
            some, step = replace(self.rounds, rounds=rounds), partial(send, "stage")
            harness.run_rounds(entries, some, outcomes, step=step, keep=send_results, until_s=until_s)

        run(planned, 1)
        planned += (more := self._around_best(swept.rates(), limits, has_gpu=has_gpu))
        run(more, 1)
        run(planned if TORCH in self.engines else contenders(swept.rates()), self.rounds.rounds - 1)

    def _around_best(self, rates: Mapping[Setting, Rate], limits: Limits, *, has_gpu: bool) -> list[Setting]:
        """Return more settings with the best number of workers; none if that is 0, or if training does not wait."""
        best = fewest(rates, step_s=self.step_s) if rates else None
        if best is None or not best.workers or (self.step_s and rates[best].stall < STALL):
            return []
        engines = [*(engine for engine in self.engines if engine == TORCH), best.engine]
        depths = [depth for depth in _MORE_PREFETCH if best.workers * depth <= limits.batches]
        found = [replace(best, engine=engine, prefetch=depth) for depth in depths for engine in engines]
        if has_gpu:
            found += [replace(best, engine=engine, is_pinned=True) for engine in engines]
        return found


@dataclass(frozen=True)
class _Measured:
    """Measures a loader of a target with one setting."""

    setting: Setting
    target: Target
    counted_s: float
    step_s: float
    swept: Swept

    def entry(self, has_gpu: bool) -> Entry:
        """Return what to measure; with a GPU, memory is pinned or not, as the setting says."""
        setting = self.setting
        side = Side(TORCH) if setting.engine == TORCH else Side(FEEDLINE, setting.engine)
        case: Case = {"workers": setting.workers, "prefetch": setting.prefetch if setting.workers else "-"}
        depth = None if setting.prefetch == PREFETCH else setting.prefetch
        options = {**self.target.options, **harness.worker_arguments(setting.workers, prefetch=depth)}
        if has_gpu:
            case["pinned"] = "yes" if setting.is_pinned else "no"
            options["pin_memory"] = setting.is_pinned
        return Entry(case, side, partial(self.measure, partial(side.open, self.target.dataset, **options)))

    def measure(self, opened: Callable[[], harness.LoaderLike]) -> Figures:
        """Measure once; nothing if the setting has raised an exception."""
        setting = self.setting
        if setting in self.swept.failures:
            return {}
        span = Span(self.counted_s, batches=2 * max(setting.workers, 1), is_ahead=False)
        peaks: list[float] = []

        # Any: a loader of either library.
        def sums(loader: Any) -> dict[str, float]:
            peaks.extend([found / 1e6] if (found := load.pss_bytes()) is not None else [])
            return _waited(loader) if setting.engine != TORCH else {}

        steady = Steady(opened, self._train, self.target.batch_size, span, ENDLESS, sums=sums)
        try:
            figures = steady.measure()
        except (Exception, SystemExit) as exc:  # raised by user code, feedline or torch
            self.swept.failures[setting] = Failure.of(exc)
            return {}
        outcome = self.swept.outcomes[setting]
        outcome.peak_pss_mb = max([*peaks, outcome.peak_pss_mb or 0.0]) or None
        own_cores = (figures["cpu_s_per_1000"] or 0.0) * (figures["samples_per_s"] or 0.0) / 1000
        others = figures["other_cores"]
        if others is not None and others + own_cores < _CROWDED * (os.cpu_count() or 1):
            figures["other_cores"] = 0.0  # programs on other cores of a large machine disturb nobody
        if setting.engine != TORCH:
            figures["stall"] = min(1.0, (figures["making_s"] or 0.0) / (figures["seconds"] or 1.0))
        return figures

    def _train(self, batch: object) -> None:
        touch(batch)
        if self.step_s:
            time.sleep(self.step_s)


# Any: a loader of feedline's.
def _waited(loader: Any) -> dict[str, float]:
    """Return how long the training loop has waited for batches to be made, as reported by feedline's loader.

    The time to hand over a finished batch does not count: more workers would not reduce it.
    """
    waits = loader.stats().total.waits
    return {"making_s": sum(seconds for cause, seconds in waits.items() if cause not in ("transfer", "deliver"))}
