"""The user's dataset: the doctor's findings, the tuner's choice, and what training waits for, before and after."""

from __future__ import annotations

import ast
import operator
import queue
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
from torch.utils.data import Dataset

import feedline
from feedline.datasets.derived.objects import open_object
from feedline.errors import DatasetFailed
from feedline.tools.advise.diagnosis import diagnose, summary
from feedline.tools.advise.finding import Finding
from feedline.tools.lab import view as lab
from feedline.tools.measure.choice import Rate, Setting, choose
from feedline.tools.measure.harness import Settings
from feedline.tools.measure.measured import LoaderSetup
from feedline.tools.measure.sweep import Failure, Sweep
from feedline.tools.measure.target import Target, target_of

_PROBE_S, _TRAIN_S, _TUNE_S = 6.0, 2.5, 20.0
_CLICK_S = 600.0
"""How long to wait for a click before the run ends."""

# Any, throughout: arguments of a loader.
Arguments = dict[str, Any]


class Example(Dataset[torch.Tensor]):
    """The dataset that is tried if none is named: samples that wait 4 ms for storage."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.004)
        return torch.full((3, 32, 32), float(index))


def your_dataset(
    clicks: lab.Clicks,
    source: Annotated[str, lab.Control("Dataset or loader (module:name)")] = "",
    batch_size: Annotated[int, lab.Control("Batch size (0: your loader's, or 32)", 0, 4096)] = 0,
    workers: Annotated[int, lab.Control("Workers at first (if you name a dataset)", 0, 16)] = 0,
    step_ms: Annotated[int, lab.Control("Training step", 0, 500, unit="ms")] = 5,
    try_all: Annotated[bool, lab.Control("Try all findings without clicks")] = False,
) -> Iterator[lab.Event]:
    """Name your dataset or loader, and see what would make it faster.

    Enter module:dataset or path/to/file.py:dataset, relative to the folder in which you started the lab. The doctor
    measures it in a separate process, and the tuner tries numbers of workers; `feedline doctor` and `feedline tune` do
    the same in a terminal. Your files are not changed.

    Then click a fix to try it, the first finding first: serious ones come first, then those that gain most.
    """
    from feedline.tools.measure.probe import probe  # can be imported on Linux only

    if not source:
        yield lab.say("This is an example dataset, whose samples wait for storage.")
        source = f"{__name__}:{Example.__name__}"
    yield lab.doing("The doctor is measuring samples, one after the other.", _PROBE_S)
    measured = probe(source, seconds=_PROBE_S)
    findings = diagnose(measured)
    texts = [_text(number, finding) for number, finding in enumerate(findings, 1)]
    yield lab.notes("findings", "The doctor's findings", texts or ["No problems were found."])
    yield lab.notes("measured", "The measurements, one sample after the other", summary(measured))
    opened = open_object(source)
    target = target_of(opened, batch_size or None)
    usual = _as_it_is(measured.loader, workers)
    tried = _Tried(source, opened, target, step_ms / 1000)
    yield from tried.draw("as it is", usual)

    yield lab.doing("The tuner is trying different numbers of workers.", _TUNE_S)
    setting = None
    try:
        rounds = Settings(rounds=1, max_other_cores=float("inf"))
        sweep = Sweep(source, _TUNE_S, rounds, batch_size=batch_size or None, step_s=step_ms / 1000)
        swept = sweep.run(lambda stage: None)
        choice = choose(swept.rates(), swept.limit, step_s=step_ms / 1000)
        setting = choice.setting
        late = [f"There was no time for {one}; `feedline tune` tries longer." for one in swept.missing()[:1]]
        yield _curve(swept.rates())
        yield lab.notes("choice", f"The tuner's choice: {setting or 'none'}", [*choice.reasons, *late])
    except DatasetFailed as error:
        yield lab.notes("choice", "The tuner cannot run this dataset", [str(error), error.traceback])
    offers = _offers(findings, setting)
    if not offers:
        yield lab.say("Nothing here can be tried by changing the loader's arguments.")
    elif not try_all:
        yield lab.buttons({action: f"Try {title}" for action, (title, _) in offers.items()})
        yield lab.doing("")
        yield lab.say("Click a button to try a fix.")
    for action in list(offers) if try_all else _clicked(clicks) if offers else ():
        title, given = offers[action]
        # Without workers, the loader takes none of the arguments about them.
        yield from tried.draw(title, given if given.get("num_workers") == 0 else {**usual, **given})
        yield lab.doing("")


def _text(number: int, finding: Finding) -> str:
    gain = f", {finding.gain:.1f}x" if finding.gain else ""
    head = f"{number}. {finding.name} ({finding.severity}{gain})"
    return "\n".join(filter(None, (head, finding.problem, finding.evidence, finding.fix, finding.code)))


def _offers(findings: Sequence[Finding], setting: Setting | None) -> dict[str, tuple[str, Arguments]]:
    """Return what can be tried, by action: a title, and the arguments to change."""
    offers: dict[str, tuple[str, Arguments]] = {}
    for number, finding in enumerate(findings, 1):
        if given := arguments_of(finding):
            offers[f"try-{number}"] = f"finding {number}: {finding.name}", given
    if setting is not None:
        tuned = {"engine": setting.engine, "prefetch_factor": setting.prefetch} if setting.workers else {}
        offers["tuned"] = "the tuner's choice", {"num_workers": setting.workers, **tuned}
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
    if loader is None or not loader.workers:
        return {"num_workers": 0 if loader else workers}
    kept = {"persistent_workers": True} if loader.is_persistent else {}
    return {"num_workers": loader.workers, "engine": loader.engine, "prefetch_factor": loader.depth, **kept}


class _Tried:
    """What has been tried: trains with a loader that differs in its arguments, and compares the rates."""

    def __init__(self, source: str, opened: object, target: Target, step_s: float) -> None:
        self._source, self._opened, self._target, self._step_s = source, opened, target, step_s
        self._bars: list[tuple[str, float, str, str]] = []

    def draw(self, title: str, given: Arguments) -> Iterator[lab.Event]:
        """Train for a moment, and yield what was measured."""
        yield lab.code(code_of(self._source, self._opened, self._target, given))
        yield lab.doing(f"Training, {title}.", _TRAIN_S)
        try:
            loader = feedline.DataLoader(self._target.dataset, **{**self._target.options, **given})
            stats = lab.stats_of(loader, step_s=self._step_s, seconds=_TRAIN_S)
        except (Exception, SystemExit) as exc:  # the user's exception, or feedline's error about it
            failure = Failure.of(exc)
            rate, text = 0.0, failure.text
            yield lab.notes("failure", f"Training failed, {title}", [failure.traceback])
        else:
            rate = stats.total.samples / max(1e-9, stats.total.seconds - stats.total.starting_s)
            text = f"{rate:,.0f} samples/s"
            waits = [(cause, seconds) for cause, seconds in stats.total.waits.items() if seconds > 0]
            drawn = [(cause, seconds, f"{seconds:.2f} s", cause) for cause, seconds in waits]
            yield lab.bars("waits", f"What training waited for, {title}", drawn)
            yield lab.notes("verdict", f"The loader's own verdict, {title}", [stats.verdict])
            yield lab.figures({"samples/s": round(rate), "training waits": f"{stats.total.stall:.0%}"})
        self._bars.append((title, rate, text, "good" if self._bars else "bad"))
        yield lab.bars("tried", "Tried", self._bars)
        before = f"{self._bars[0][2]} → " if len(self._bars) > 1 else ""
        yield lab.say(f"{title[:1].upper()}{title[1:]}: {before}{text.rstrip('.')}.")


def _curve(rates: Mapping[Setting, Rate]) -> lab.Event:
    best: dict[str, dict[int, float]] = {"process": {}, "thread": {}}
    for setting, rate in rates.items():
        for engine in best if setting.engine == "inline" else [setting.engine]:
            best[engine][setting.workers] = max(rate.samples_per_s, best[engine].get(setting.workers, 0.0))
    drawn: dict[str, lab.Line] = {engine: (list(found), list(found.values())) for engine, found in best.items()}
    return lab.lines("curve", "Samples per second by number of workers", "workers", "samples/s", drawn)


def _clicked(clicks: lab.Clicks) -> Iterator[str]:
    try:
        while True:
            yield clicks.get(timeout=_CLICK_S)
    except queue.Empty:
        return


def code_of(source: str, opened: object, target: Target, given: Arguments) -> str:
    """Return Python code for the loader, where `source` may be a loader, a dataset, or a callable that makes one."""
    file, _, name = source.rpartition(":")
    module, folder = (Path(file).stem, str(Path(file).parent)) if file.endswith(".py") else (file, ".")
    imported = f"from {module} import {name.partition('.')[0]}" + (f"  # in {folder!r}" if folder != "." else "")
    whole = name if operator.attrgetter(name)(sys.modules[module]) is opened else f"{name}()"
    used, arguments = "dataset", [target.code]
    if target.is_loader:
        used, kept = "given", {option: f"given.{option}" for option in target.options}
        if "batch_size" in kept:
            kept["batch_size"] = repr(target.options["batch_size"])
        arguments = ["given.dataset", *(f"{option}={value}" for option, value in kept.items())]
    made = "" if whole == used else f"{used} = {whole}\n"
    call = ", ".join([*arguments, *(f"{option}={value!r}" for option, value in given.items())])
    loop = "for batch in loader:\n    ...\nprint(loader.stats().verdict)"
    return f"from feedline import DataLoader\n{imported}\n\n{made}loader = DataLoader({call})\n{loop}"


VIEW = lab.View(your_dataset, presets=[{"try_all": True}])
