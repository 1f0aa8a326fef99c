"""Measure for `feedline tune`: loaders of a dataset, or runs of a user's program with settings tried on its loaders.

All user code runs in separate processes, which are ended when their time is up.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO
from weakref import WeakSet

from feedline.datasets.derived.objects import open_object
from feedline.delivery.driver.tuning import Tuning
from feedline.delivery.machine.counters import Counters
from feedline.errors import DatasetFailed
from feedline.insight.batch_rows import Totals
from feedline.insight.period import Period, period_of
from feedline.insight.worker_model import Load
from feedline.loader.base import LoaderBase, config_of, session_of
from feedline.loader.install import install
from feedline.loader.iteration import watchers
from feedline.loader.session import adjusters
from feedline.tools.cli.script import Script
from feedline.tools.measure import harness, sweep
from feedline.tools.measure.given_loader import is_loader
from feedline.tools.measure.isolated import Send, watch
from feedline.tools.measure.measured import headroom_now
from feedline.tools.measure.search import DEPTH, INLINE, Limits, OutOfTime, Rate, Setting, search
from feedline.tools.measure.target import Target, make_some, open_target, target_of
from feedline.types import JsonObject

_LONGEST_S = 1.0
_SHARE = 1 / 30
"""Share of the total time spent measuring one setting, and as long before that making batches without workers."""
_LONGEST_RUN_S = 3.0
"""The same as `_LONGEST_S`, for a program: its steps vary more than simulated ones. A guess."""
_POLL_S = 0.02
_WARM_UP = 4
"""Batches per worker after which a program counts as warmed up: two are prefetched, and used up."""
_FEW = 5
"""Fewest batches that allow a measurement. A guess."""
_TAIL = 4000
"""How many characters of a failed program's output are shown."""


@dataclass
class Kept:
    """Results received from the measuring processes."""

    limits: Limits | None = None
    batch_bytes: int = 0
    code: str = ""
    is_loader: bool = False
    batch_size: int = 0
    step_s: float = 0.0
    tried: dict[Setting, Rate] = field(default_factory=dict)
    failures: dict[Setting, sweep.Failure] = field(default_factory=dict)
    ended: str | None = None
    ended_in: str = ""

    @property
    def is_useful(self) -> bool:
        return bool(self.tried)

    def rate_of(self, setting: Setting) -> Rate | None:
        """Return what was measured of a setting; None if it failed.

        Raises OutOfTime: the time was up before it was measured.
        """
        if setting not in self.tried and setting not in self.failures:
            raise OutOfTime(setting)
        return self.tried.get(setting)


def measure_dataset(
    source: str, batch_size: int | None, *, step_s: float, seconds: float, on_stage: Callable[[str], None]
) -> Kept:
    """Measure loaders of the object named by `module:object`, with a training loop that sleeps after each batch."""
    body = partial(_measure, source, batch_size, step_s, seconds)
    return watch(body, Kept(step_s=step_s), seconds=seconds, on_stage=on_stage)


def _measure(source: str, batch_size: int | None, step_s: float, seconds: float, send: Send) -> None:
    """Measure the settings that the search requests; runs in a process of its own."""
    until_s, counted_s = time.monotonic() + seconds, min(_LONGEST_S, seconds * _SHARE)
    send("stage", "import")
    target = open_target(source, batch_size)
    send("stage", "samples")
    first = _first_measurements(target, counted_s)
    for name, value in first.items():
        send("part", name, value)
    work = sweep.Work(target.dataset, target.options, target.batch_size, step_s)
    tried: dict[Setting, Rate] = {}
    failures: dict[Setting, sweep.Failure] = {}
    longest_s = 0.0

    def measure(setting: Setting) -> Rate | None:
        nonlocal longest_s
        began_s = time.monotonic()
        if began_s + longest_s > until_s:
            raise OutOfTime(setting)
        send("stage", str(setting))
        depth = None if setting.depth == DEPTH else setting.depth
        options = harness.worker_arguments(setting.workers, prefetch=depth)
        try:
            side = harness.Side(harness.FEEDLINE, setting.engine)
            figures = work.steady(side, options, counted_s, sweep.waited).measure()
        except (Exception, SystemExit) as exc:  # raised by user code, or by feedline because of it
            failures[setting] = sweep.Failure.of(exc)
            send("part", "failures", failures)
            return None
        longest_s = max(longest_s, time.monotonic() - began_s)
        stall = (figures["making_s"] or 0.0) / (figures["seconds"] or 1.0)
        tried[setting] = Rate(figures["samples_per_s"] or 0.0, min(1.0, stall), figures["other_cores"] or 0.0)
        send("part", "tried", tried)
        return tried[setting]

    with harness.expected_warnings():
        search(measure, first["limits"], step_s=step_s)


def _first_measurements(target: Target, seconds: float) -> JsonObject:
    """Make batches without workers, and return values for attributes of `Kept`: about the target, and the limits."""
    made, headroom = make_some(target, seconds=seconds), headroom_now()
    limits = Limits.of(Load(made.batch_s, 0.0, made.cpu_s, headroom.cores), headroom.memory_bytes, made.batch_bytes)
    details = {name: getattr(target, name) for name in ("code", "is_loader", "batch_size")}
    return {**details, "batch_bytes": made.batch_bytes, "limits": limits}


# -- a program -------------------------------------------------------------------------------------------------------


def measure_program(words: list[str], source: str | None, *, seconds: float, on_stage: Callable[[str], None]) -> Kept:
    """Run a program with one setting after the other, for some seconds each.

    Args:
        words: the program and its arguments, as after `python`.
        source: names a dataset or loader: settings are tried on loaders of such datasets. None for all loaders.
        seconds: the limit on the total time.
        on_stage: called with the name of each stage that begins.

    Raises:
        BadOption: there is no such program, or no such dataset.
        DatasetFailed: the program fails, hangs or crashes even without workers, or iterates over no loader.
    """
    is_module = words[0] == "-m"
    arguments = argparse.Namespace(command="tune --script", module=words[1:] if is_module else None, program=words)
    script, kept, until_s = Script.of(arguments), Kept(), time.monotonic() + seconds
    kind = (
        None if source is None else watch(partial(_kind_of, source), _Kind(), seconds=seconds, on_stage=on_stage).name
    )
    counted_s, longest_s = min(_LONGEST_RUN_S, seconds * _SHARE), 0.0

    def measure(setting: Setting) -> Rate | None:
        nonlocal longest_s
        began_s = time.monotonic()
        if setting in kept.tried:
            return kept.tried[setting]
        if began_s + longest_s > until_s:
            raise OutOfTime(setting)
        run = partial(_run, script, kind, setting, counted_s, kept.limits is None)
        result = _Run()
        try:
            watch(run, result, seconds=until_s - began_s, on_stage=on_stage, subject="The program")
        except DatasetFailed as exc:
            if kept.limits is None:
                raise
            if exc.reason == "hangs":
                kept.ended = str(exc)
                raise OutOfTime(setting) from exc
            kept.failures[setting] = sweep.Failure(str(exc), exc.traceback)
            return None
        longest_s = max(longest_s, time.monotonic() - began_s)
        if kept.limits is None:
            for name in ("limits", "batch_bytes", "code", "is_loader", "batch_size", "step_s"):
                setattr(kept, name, getattr(result, name))
        kept.tried[setting] = result.rate
        return result.rate

    measure(INLINE)
    assert kept.limits is not None  # sent by the first run
    search(measure, kept.limits, step_s=kept.step_s)
    return kept


@dataclass
class _Kind:
    """Result received from the process that opens a dataset: the name of its class."""

    name: str = ""
    ended: str | None = None
    ended_in: str = ""
    is_useful = False


def _kind_of(source: str, send: Send) -> None:
    send("stage", "import")
    opened = open_object(source)
    send("part", "name", type(opened.dataset if is_loader(opened) else opened).__qualname__)


@dataclass
class _Run(Kept):
    """Results received from a run of the program."""

    rate: Rate = field(default_factory=lambda: Rate(0.0))
    is_useful = False


def _run(script: Script, kind: str | None, setting: Setting, seconds: float, is_first: bool, send: Send) -> None:
    """Run the program until a setting is measured; runs in a process of its own."""
    send("stage", str(setting))
    install()
    watching = _Watching(kind, setting, seconds, measures_first=is_first)
    with tempfile.TemporaryFile() as written:
        os.dup2(written.fileno(), 1)
        os.dup2(written.fileno(), 2)
        adjusters.append(watching.adjust)
        watchers.append(watching.note)
        measuring = threading.Thread(target=watching.run, args=(send,), daemon=True)
        measuring.start()
        end: SystemExit | None = None
        try:
            script.run()
        except SystemExit as exc:
            end = exc
        except KeyboardInterrupt:
            raise SystemExit(130) from None
        if end is not None and end.code not in (0, None) and not watching.is_done:
            raise DatasetFailed(f"The program failed with {setting} ({_code(end)}).", "raises", _tail(written))
        watching.has_ended.set()
        measuring.join()
        if watching.is_done:
            return
        which = "loader" if kind is None else f"loader of a dataset {kind}"
        raise DatasetFailed(
            f"The program ended before any {which} in this process had delivered enough batches to measure. Ranks that "
            "a program starts are processes of their own, which are not measured.",
            "empty",
            _tail(written),
        )


# Any: a loader that a hook is called with.
class _Watching:
    """Applies a setting to loaders and, while the program runs, measures the kind that takes the most time.

    Loaders of the same kind count as one: a program may create another for each epoch.

    Args:
        kind: the class name of their datasets; None for any.
        setting: the setting to apply.
        seconds: how long to measure.
        measures_first: True to examine loaders before they are iterated over.
    """

    def __init__(self, kind: str | None, setting: Setting, seconds: float, *, measures_first: bool) -> None:
        self._kind, self._setting, self._seconds, self._measures_first = kind, setting, seconds, measures_first
        self._adjusted: WeakSet[LoaderBase] = WeakSet()
        self._measured_first: dict[str, dict[str, object]] = {}
        self._counters: dict[str, dict[int, Counters]] = {}
        self._engines: dict[str, str] = {}
        self.has_ended = threading.Event()
        self.is_done = False
        self._pid = os.getpid()

    def adjust(self, loader: Any) -> None:
        """Apply the setting to a loader, if it is one of those being tuned."""
        is_meant = self._kind is None or type(loader.dataset).__qualname__ == self._kind
        if not is_meant or loader in self._adjusted or os.getpid() != self._pid:
            return
        if self._measures_first and _kind(loader) not in self._measured_first:
            adjusters.remove(self.adjust)  # do not adjust the loaders that this creates
            try:
                self._measured_first[_kind(loader)] = _first_measurements(
                    target_of(loader), min(self._seconds, _LONGEST_S)
                )
            finally:
                adjusters.append(self.adjust)
        self._adjusted.add(loader)
        session = session_of(loader)
        session.set_options(engine="auto")  # its own engine may not allow this number of workers
        session.tuning = Tuning.fixed(self._setting.workers, self._setting.engine, self._setting.depth)

    def note(self, loader: Any) -> None:
        """Register the counters of a loader whose epoch begins."""
        if loader in self._adjusted and os.getpid() == self._pid:
            counters = session_of(loader).resources.counters
            self._counters.setdefault(_kind(loader), {})[id(counters)] = counters
            self._engines[_kind(loader)] = config_of(loader).engine_name

    def run(self, send: Send) -> None:
        """Measure, and send the results, which ends the process. Send nothing about a program that ends too early."""
        warm = _WARM_UP * max(1, self._setting.workers)
        while not self.has_ended.wait(_POLL_S):
            if any(period.batches >= warm for period in self._periods().values()):
                break
        before = after = self._periods()
        while True:  # until there are enough batches, however long one takes
            has_ended = self.has_ended.wait(self._seconds)
            latest, after = after, self._periods()
            if self._send_results(before, after, warm, send):
                return
            if has_ended or after == latest:  # for a short run, leave out only the start of the workers
                is_sent = self._send_results(
                    {kind: _start_of(period) for kind, period in after.items()}, after, _FEW, send
                )
                if is_sent or has_ended:
                    return

    def _periods(self) -> dict[str, Period]:
        found = {}
        for kind, counters in list(self._counters.items()):
            total = Totals()
            for one in list(counters.values()):
                total.merge(one.observer.totals(one.batches)[2])
            found[kind] = period_of(total, self._setting.workers)
        return found

    def _send_results(self, before: dict[str, Period], after: dict[str, Period], least: int, send: Send) -> bool:
        """Send the measurements between two moments, of the kind with the most time; False if they are too few."""
        spent = {kind: period.seconds - before.get(kind, Period()).seconds for kind, period in after.items()}
        kind = max(spent, key=spent.__getitem__, default="")
        old, new, seconds = before.get(kind, Period()), after.get(kind, Period()), spent.get(kind, 0.0)
        batches = new.batches - old.batches
        if batches < max(least, _FEW) or seconds <= 0:
            return False
        self.is_done = True
        if self._engines[kind] != self._setting.engine:
            text = f"The loader keeps engine={self._engines[kind]!r}, which its seed= requires."
            send("failed", "raises", (text, ""))
            return True
        making_s = _making_s(new) - _making_s(old)
        results = {
            **self._measured_first.get(kind, {}),
            "step_s": max((seconds - new.wait_s + old.wait_s) / batches, 1e-6),
        }
        results["rate"] = Rate((new.samples - old.samples) / seconds, min(1.0, max(0.0, making_s / seconds)))
        for name, value in results.items():
            send("part", name, value)
        send("done")
        return True


def _kind(loader: LoaderBase) -> str:
    """Return a key that is the same for all loaders that a program creates in one way, again and again."""
    sampler = getattr(loader, "sampler", None)
    return f"{type(loader.dataset).__qualname__} {loader.batch_size} {type(sampler).__qualname__}"


def _start_of(period: Period) -> Period:
    """Return the part of a period until its first batch."""
    samples = period.samples // max(period.batches, 1)
    return Period(1, samples, period.start_s, waits={"start": period.start_s})


def _making_s(period: Period) -> float:
    return sum(seconds for cause, seconds in period.waits.items() if cause not in ("transfer", "deliver"))


def _code(end: SystemExit) -> str:
    return f"exit code {end.code}" if isinstance(end.code, int) else str(end.code)


def _tail(written: BinaryIO) -> str:
    sys.stdout.flush()
    size = written.seek(0, os.SEEK_END)
    written.seek(max(0, size - _TAIL))
    return written.read().decode(errors="replace")
