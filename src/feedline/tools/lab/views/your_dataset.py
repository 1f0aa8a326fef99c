"""The user's dataset: the doctor's findings, what training waits for, the tuner's curve, and fixes tried."""

from __future__ import annotations

import ast
import functools
import operator
import queue
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

import feedline
from feedline.datasets.derived.objects import open_object
from feedline.errors import DatasetFailed
from feedline.insight.stats import Stats
from feedline.insight.worker_model import Load
from feedline.loader.base import LoaderBase
from feedline.tools.advise.diagnosis import diagnose, summary
from feedline.tools.advise.finding import Finding
from feedline.tools.lab.apart import apart
from feedline.tools.lab.controls import Number, Switch, Text, Values
from feedline.tools.lab.pictures import Event, bars, buttons, code, doing, figures, lines, say, table
from feedline.tools.lab.view import Actions, View
from feedline.tools.measure.choice import Choice, Limits, Rate, Setting, choose, settings
from feedline.tools.measure.measured import LoaderSetup
from feedline.tools.measure.steady import touch
from feedline.tools.measure.sweep import Failure, waited
from feedline.tools.measure.target import BATCH_SIZE, Target, make_some, target_of

_PROBE_S = 6.0
_TRAIN_S = 2.5
_CURVE_S = 0.8
_CURVE_LONGEST_S = 20.0
_SHOWN_EACH_S = 0.4
_MOST_WORKERS = 8
_TIMEOUT_S = 600.0
"""How long to wait for a click before the run ends."""
_TUNED = "tuned"
_NO_PROBLEM = "No problems were found."
_IMPORT = "from feedline import DataLoader"

# Any, throughout: arguments of a loader.
Arguments = dict[str, Any]


class Example(Dataset[torch.Tensor]):
    """The dataset that is tried if none is named: samples that wait 4 ms for storage."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.full((3, 32, 32), float(index))


EXAMPLE = f"{__name__}:{Example.__name__}"


@dataclass(frozen=True)
class _Trained:
    """What a training loop measured with a loader; after a failure, up to that point."""

    samples_per_s: float = 0.0
    stall: float = 0.0
    """The share of its time that it waited for batches to be made."""
    stats: Stats | None = None
    failure: Failure | None = None

    def text(self) -> str:
        return f"{self.samples_per_s:,.0f}" if self.failure is None else self.failure.text


def _run(values: Values, actions: Actions) -> Iterator[Event]:
    from feedline.tools.measure.probe import probe  # can be imported on Linux only

    source, step_s = values["source"] or EXAMPLE, values["step_ms"] / 1000
    if not values["source"]:
        yield say("This is an example dataset, whose samples wait for storage.")
    yield doing("The doctor is measuring samples, one after the other.", _PROBE_S)
    measured = probe(source, seconds=_PROBE_S)
    findings = diagnose(measured)
    yield _findings(findings)
    yield table("measured", "The measurements", ["One sample after the other"], [[line] for line in summary(measured)])

    opened = open_object(source)
    target = target_of(opened, values["batch_size"] or None)
    usual = _as_it_is(measured.loader, values["workers"])
    yield code(code_of(source, opened, target, usual))
    call = functools.partial(_call, "loader.dataset" if target.is_loader else "dataset")
    yield doing(f"Training with {call(usual)}.", _TRAIN_S)
    now = _Trained()
    for now in _trained(target, usual, step_s, _TRAIN_S):
        yield from _stalls("as it is", now)
    curve = _Curve(target, step_s)
    yield doing("The tuner is trying different numbers of workers.", _CURVE_LONGEST_S)
    yield from curve.draw()
    offers = offers_of(findings, usual, curve.choice)
    rows = [["as it is", call(usual), now.text(), "", f"{now.stall:.0%}"]]
    yield _tried(rows)
    if not offers:
        yield say("Nothing here can be tried by changing the loader's arguments.")
    elif not values["try_all"]:
        yield buttons({action: offer.button for action, offer in offers.items()})
        yield doing("")
        yield say("Click a button to try a fix.")
    for click in list(offers) if values["try_all"] else _clicks(actions) if offers else ():
        name, given = offers[click].name, offers[click].arguments
        yield doing(f"Trying {name}: {call(given)}.", _TRAIN_S)
        then = now
        for then in _trained(target, given, step_s, _TRAIN_S):
            yield from _stalls(name, then)
        times = then.samples_per_s / now.samples_per_s if now.samples_per_s else 0.0
        rows.append([name, call(given), then.text(), f"{times:.2g}x" if times else "", f"{then.stall:.0%}"])
        yield _tried(rows)
        yield _rates([("as it is", now, "bad"), (name, then, "good")])
        yield doing("")
        yield say(f"{name}: {now.text()} → {then.text()} samples/s.")


@dataclass(frozen=True)
class Offer:
    """A change that the user can try with a click."""

    button: str
    name: str
    arguments: Arguments


def offers_of(findings: Sequence[Finding], usual: Arguments, choice: Choice | None) -> dict[str, Offer]:
    """Return what can be tried, by action. A finding has the number of its row in the table of findings."""
    offers = {
        f"try-{row}": Offer(f"Try finding {row}: {finding.name}", finding.name, {**usual, **given})
        for row, finding in enumerate(findings, 1)
        if (given := arguments_of(finding))
    }
    if choice is not None and choice.setting is not None:
        offers[_TUNED] = Offer("Try the tuner's choice", "the tuner's choice", _of_setting(choice.setting))
    return offers


def arguments_of(finding: Finding) -> Arguments:
    """Return the loader arguments that a finding recommends; none if it recommends something else."""
    try:
        called = ast.parse(finding.code or "", mode="eval").body
        if not isinstance(called, ast.Call) or ast.unparse(called.func) != "DataLoader":
            return {}
        return {keyword.arg or "": ast.literal_eval(keyword.value) for keyword in called.keywords}
    except (SyntaxError, ValueError):  # statements, or values that exist only in the user's program
        return {}


def _as_it_is(loader: LoaderSetup | None, workers: int) -> Arguments:
    """Return the arguments of the user's loader; for a dataset, those set on the view."""
    if loader is None:
        return {"num_workers": workers}
    if not loader.workers:
        return {"num_workers": 0}
    kept = {"persistent_workers": True} if loader.is_persistent else {}
    return {"num_workers": loader.workers, "engine": loader.engine, "prefetch_factor": loader.depth, **kept}


def _of_setting(setting: Setting) -> Arguments:
    if not setting.workers:
        return {"num_workers": 0}
    return {"num_workers": setting.workers, "engine": setting.engine, "prefetch_factor": setting.prefetch}


def _trained(target: Target, given: Arguments, step_s: float, seconds: float) -> Iterator[_Trained]:
    """Train for `seconds` after the first batches; yield measurements now and then, and a failure at the end."""
    skipped, seen = max(1, given["num_workers"]), _Trained()
    try:
        loader = feedline.DataLoader(target.dataset, **{**target.options, **given})
        try:
            for number, batch in enumerate(loader, 1):
                touch(batch)
                time.sleep(step_s)
                now = time.monotonic()
                if number <= skipped:
                    began = shown = now
                    waited_s = waited(loader)["making_s"]
                elif now - shown > _SHOWN_EACH_S:
                    shown, took_s = now, now - began
                    stall = min(1.0, (waited(loader)["making_s"] - waited_s) / took_s)
                    seen = _Trained((number - skipped) * target.batch_size / took_s, stall, loader.stats())
                    yield seen
                    if took_s > seconds:
                        return
        finally:
            loader.close()
    except (Exception, SystemExit) as exc:  # the user's exception, or feedline's error about it
        yield replace(seen, failure=Failure.of(exc))


class _Curve:
    """Rates over numbers of workers: measures the settings that the tuner tries, one after the other."""

    def __init__(self, target: Target, step_s: float) -> None:
        self.choice: Choice | None = None
        self._target = target
        self._first = f"loader.{target.code}" if target.is_loader else target.code
        self._step_s = step_s
        self._tried: dict[Setting, Rate] = {}

    def draw(self) -> Iterator[Event]:
        """Yield the curve as it grows."""
        try:
            limits = self._limits()
        except DatasetFailed as error:
            yield table("choice", "The tuner cannot run this dataset", [str(error)], [[error.traceback]])
            return
        until = time.monotonic() + _CURVE_LONGEST_S
        for setting in settings(limits.counts(), ("process", "thread")):
            if time.monotonic() > until:
                return
            if (rate := self._rate(setting)) is not None:
                self._tried[setting] = rate
            yield self._drawn()
        if self._tried:
            self.choice = choose(self._tried, limits.reason, step_s=self._step_s)
            chosen = self.choice.setting
            head = "" if chosen is None else f"loader = {chosen.code(self._first)}"
            why = [[reason] for reason in self.choice.reasons]
            yield table("choice", f"The tuner's choice: {chosen or 'none'}", [head], why)

    def _limits(self) -> Limits:
        from feedline.tools.measure.measured import headroom_now

        made, headroom = make_some(self._target, seconds=_CURVE_S), headroom_now()
        limits = Limits.of(
            Load(made.batch_s, self._step_s, made.cpu_s, headroom.cores), headroom.memory_bytes, made.batch_bytes
        )
        if limits.workers <= _MOST_WORKERS:
            return limits
        return replace(limits, workers=_MOST_WORKERS, reason="the lab stops there; `feedline tune` tries more")

    def _rate(self, setting: Setting) -> Rate | None:
        seen = [_Trained(), *_trained(self._target, _of_setting(setting), self._step_s, _CURVE_S)][-1]
        return Rate(seen.samples_per_s, seen.stall) if seen.stats and not seen.failure else None

    def _drawn(self) -> Event:
        series: dict[str, dict[int, float]] = {}
        for setting, rate in self._tried.items():
            for engine in ("process", "thread") if setting.engine == "inline" else (setting.engine,):
                best = series.setdefault(engine, {})
                best[setting.workers] = max(rate.samples_per_s, best.get(setting.workers, 0.0))
        drawn = {engine: (sorted(found), [found[count] for count in sorted(found)]) for engine, found in series.items()}
        return lines("curve", "Samples per second by number of workers", "workers", "samples/s", drawn)


def _findings(findings: Sequence[Finding]) -> Event:
    rows = [
        [
            str(row),
            f"{finding.name}\n({finding.severity})",
            "\n".join(filter(None, (finding.problem, finding.evidence))),
            "\n".join(filter(None, (finding.fix, finding.code))) or "nothing",
            f"{finding.gain:.1f}x" if finding.gain else "",
        ]
        for row, finding in enumerate(findings, 1)
    ]
    head = ["", "finding", "what is wrong", "what to do", "gain"]
    return table("findings", "The doctor's findings", head, rows or [["", _NO_PROBLEM, "", "", ""]])


def _stalls(name: str, seen: _Trained) -> Iterator[Event]:
    if seen.failure is not None:
        yield table("failure", f"Training failed: {name}", [seen.failure.text], [[seen.failure.traceback]])
    if seen.stats is None:
        return
    waits = {cause: value for cause, value in seen.stats.total.waits.items() if value > 0} or {"nothing": 0.0}
    drawn = [(cause, value, f"{value:.2f} s", cause) for cause, value in waits.items()]
    yield bars("waits", f"What training waited for: {name}", drawn)
    yield table("verdict", f"The loader's own verdict: {name}", ["loader.stats().verdict"], [[seen.stats.verdict]])
    yield figures({"samples/s": round(seen.samples_per_s), "training waits": f"{seen.stall:.0%}"})


def _tried(rows: list[list[str]]) -> Event:
    head = ["what", "loader", "samples/s", "relative speed", "training waits"]
    return table("tried", "Tried", head, rows)


def _rates(seen: list[tuple[str, _Trained, str]]) -> Event:
    drawn = [(name, one.samples_per_s, one.text(), shade) for name, one, shade in seen]
    return bars("rates", "Samples per second", drawn)


def _clicks(actions: Actions) -> Iterator[str]:
    while True:
        try:
            yield actions.get(timeout=_TIMEOUT_S)
        except queue.Empty:
            return


def _call(first: str, given: Arguments) -> str:
    return f"DataLoader({first}, {', '.join(f'{name}={value!r}' for name, value in given.items())})"


def code_of(source: str, opened: object, target: Target, usual: Arguments) -> str:
    """Return Python code for the loader, where `source` may be a loader, a dataset, or a callable that makes one."""
    file, _, name = source.rpartition(":")
    is_file = file.endswith(".py")
    module, folder = (Path(file).stem, str(Path(file).parent)) if is_file else (file, ".")
    imported = f"from {module} import {name.partition('.')[0]}" + (f"  # in {folder!r}" if folder != "." else "")
    whole = name if operator.attrgetter(name)(sys.modules[module]) is opened else f"{name}()"
    if isinstance(opened, LoaderBase):  # feedline's loader is used as it is
        return _written([imported], {"loader": whole})
    if not target.is_loader:
        return _written([_IMPORT, imported], {"dataset": whole, "loader": _call(target.code, usual)})
    kept = {option: f"{option}=given.{option}" for option in target.options}
    if "batch_size" in kept:
        kept["batch_size"] = f"batch_size={target.options['batch_size']!r}"
    call = _call(", ".join(["given.dataset", *kept.values()]), usual)
    return _written([_IMPORT, imported], {"given": whole, "loader": call})


def _written(imports: list[str], made: dict[str, str]) -> str:
    """Return a training loop over `loader`, after imports and assignments."""
    assigned = [f"{name} = {value}" for name, value in made.items() if name != value]
    loop = ["for batch in loader:", "    ...", "print(loader.stats().verdict)", ""]
    return "\n".join([*imports, "", *assigned, *loop])


def _code(values: Values) -> str:
    if values["source"]:
        return f"# The code appears here once the lab has opened {values['source']!r}.\n"
    first = f"dataset, batch_size={values['batch_size'] or BATCH_SIZE}, shuffle=True"
    call = _call(first, {"num_workers": values["workers"]})
    return _written([_IMPORT, f"from {__name__} import {Example.__name__}"], {"dataset": "Example()", "loader": call})


VIEW = View(
    name="your_dataset",
    title="Your dataset",
    notice="Name your dataset or loader, and see what would make it faster.",
    more="Enter module:dataset or path/to/file.py:dataset, relative to the folder in which you started the lab. The "
    "doctor measures it in a separate process, training runs with it briefly, and the tuner tries different numbers "
    "of workers. Then click a fix to try it, and compare the new rate with the old one. Your files are not changed.",
    controls=(
        Text("source", "Dataset or loader (module:name)"),
        Number("batch_size", "Batch size (0: your loader's, or 32)", 0, 4096, 0),
        Number("workers", "Workers at first (if you name a dataset)", 0, 16, 0),
        Number("step_ms", "Training step", 0, 500, 5, unit="ms"),
        Switch("try_all", "Try all findings without clicks", default=False),
    ),
    code=_code,
    run=apart(_run),
    questions=(
        (
            "Can you get the same result without the lab?",
            "Yes: `feedline doctor` prints the findings in a terminal, and `feedline tune` tries numbers of workers.",
        ),
        (
            "Which finding should you try first?",
            "The first one: serious findings come first, then those that gain most. Try one at a time.",
        ),
    ),
    presets=({"try_all": True},),
)
