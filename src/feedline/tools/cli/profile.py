"""`feedline profile`: run an unchanged program with feedline's loader, and report what its training waited for.

Every loader that iterates in this process is recorded; other processes (workers, ranks that the program starts) are
not. With `--compare` the program runs twice, in separate processes: each writes its figures to a file, which this
process reads.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch.utils.data.dataloader

import feedline
from feedline.errors import BadOption, FeedlineError
from feedline.insight.machine_figures import MachineFigures
from feedline.insight.period import Period, stall_of
from feedline.insight.stats import aligned, shown
from feedline.loader.base import LoaderBase, session_of
from feedline.loader.install import install
from feedline.loader.iteration import watchers
from feedline.loader.recorder import Recorder
from feedline.system.failures import words
from feedline.system.files import make_folder_for
from feedline.system.ranks import share_if_known
from feedline.system.shown import percent, printable
from feedline.tools.cli.report import page_text
from feedline.tools.cli.script import Script, add_program

NOTHING_ITERATED = 4
"""Exit code of a program that iterated over no loader."""
_MOST_ROWS = 50_000
_MOST_LOADERS = 16
"""Limits on the recorded batches of a loader, and on recorded loaders: all of them take some 150 MB at most."""
_LIBRARIES = tuple(
    str(Path(str(module.__file__)).parent) + os.sep for module in (feedline, torch)
)  # their frames do not show which loop it is


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.epilog = (
        "The exit code is the program's if it fails (1 after an exception, 130 after Ctrl-C); 4 if it iterated over no "
        "loader; 1 for an error that feedline reports; otherwise 0."
    )
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="DIR/NAME",
        help="write NAME.json.gz (the recording) and NAME.html (its page); default: the program's name and -profile",
    )
    parser.add_argument(
        "--compare", action="store_true", help="run it with torch's loader first, and show both side by side"
    )
    # Options that --compare passes when it calls this command.
    parser.add_argument("--loader", choices=("feedline", "torch"), default="feedline", help=argparse.SUPPRESS)
    parser.add_argument("--figures", type=Path, help=argparse.SUPPRESS)
    add_program(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the program, then write and report the measurements.

    Raises:
        SystemExit: the program ended itself, with its code; or it iterated over no loader.
        BadOption: the results cannot be written.
    """
    script = Script.of(arguments)
    out = _out_of(arguments.out, script)
    if arguments.compare:
        _compare(arguments, out)
        return
    is_torch, pid = arguments.loader == "torch", os.getpid()
    end: SystemExit | KeyboardInterrupt | None = None
    with _timed_torch() if is_torch else _recorded() as found:
        try:
            script.run()
        except (SystemExit, KeyboardInterrupt) as exc:
            end = exc
    if os.getpid() != pid:  # the program has forked, and this is the child process
        if end is not None:
            raise end
        return
    has_failed = isinstance(end, KeyboardInterrupt) or (end is not None and end.code not in (0, None))
    try:
        result = found.result(out)
        if arguments.figures is not None:
            arguments.figures.write_text(json.dumps(asdict(result)), "utf-8")
        elif result.loaders or result.notes:
            sys.stdout.write(printable(result.text(found.rank)))
    except (FeedlineError, OSError) as exc:
        if not has_failed:
            raise BadOption(f"The results could not be written: {words(exc)}. Choose another place with -o.") from exc
        sys.stderr.write(printable(f"feedline: The results could not be written: {exc}\n"))
    if has_failed:
        assert end is not None
        raise end
    if not (result.loaders or result.notes):
        sys.stderr.write(_NOTHING.format(whose="torch's" if is_torch else "any"))
        raise SystemExit(NOTHING_ITERATED)
    if end is not None:
        raise end


_NOTHING = (
    "feedline: The program ended without iterating over {whose} DataLoader in this process, so there is nothing to "
    "report. Ranks that a program starts are processes of their own: let the launcher start feedline in each, with "
    "torchrun -m feedline profile train.py.\n"
)


def _out_of(given: Path | None, script: Script) -> Path:
    """Return the path of the output files without their suffixes; refuse an unusable folder before running."""
    name = script.name.rpartition(".")[2] if script.is_module else Path(script.name).stem
    out = Path(f"{name}-profile") if given is None else given
    if out.is_dir():
        out = out / f"{name}-profile"
    out = out.absolute()  # the program may change the working directory
    make_folder_for(out)
    return out


# -- measurements ----------------------------------------------------------------------------------------------------


def _cells(period: Period) -> list[str]:
    waited = shown(period.wait_s - period.starting_s), percent(period.stall, 1)
    return [f"{period.batches:,}", f"{period.batches_per_s:,.1f}", *waited, shown(period.starting_s)]


_HEADS = ["batches", "batches/s", "waited", "of the time", "start-up"]


@dataclass
class Result:
    """The results of a run."""

    loaders: dict[str, Period]
    """Figures of feedline's loaders, or of torch's, by name; the loader with the longest waits first."""
    verdict: str = ""
    notes: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)

    def text(self, rank: int) -> str:
        """Return the text to print; for ranks other than the first, only the paths of their files."""
        if rank:
            return f"rank {rank}: {' '.join(self.paths)}\n"
        table = aligned([["loader", *_HEADS], *([name, *_cells(one)] for name, one in self.loaders.items())])
        return _paragraphs(self, table)


def _paragraphs(result: Result, table: str) -> str:
    verdict = textwrap.fill(result.verdict, 100, break_long_words=False)
    return "\n".join(["", verdict, "", table, "", *result.notes, *result.paths, ""])


# -- feedline's loaders ----------------------------------------------------------------------------------------------


class _Recorded:
    """All loaders that iterate in this process, each with its recorder."""

    def __init__(self) -> None:
        self._recorders: dict[str, Recorder] = {}
        self._left_out = 0
        self._pid = os.getpid()
        self.rank, self._ranks = 0, 1
        self.figures = MachineFigures(self._pids)

    def watch(self, loader: LoaderBase) -> None:
        """Record a loader whose epoch begins, if it is not recorded yet."""
        if os.getpid() != self._pid:  # a worker, or another forked process
            return
        counters = session_of(loader).resources.counters
        known = next((one for one in self._recorders.values() if one.counters is counters), None)
        if known is not None:
            known.follow(loader)
        elif len(self._recorders) == _MOST_LOADERS:
            self._left_out += 1
        else:
            share = share_if_known()
            self.rank, self._ranks = share.rank, share.world_size
            self._recorders[_distinct(_name_of(loader), self._recorders)] = Recorder(loader, _MOST_ROWS)

    def _pids(self) -> list[int]:
        return [pid for recorder in list(self._recorders.values()) for pid in recorder.pids()]

    def result(self, out: Path) -> Result:
        """Write the recording of the loader with the longest waits, and its page."""
        periods = {name: recorder.period() for name, recorder in self._recorders.items()}
        periods = dict(sorted(periods.items(), key=lambda item: -item[1].wait_s))
        result = Result(periods)
        if self._left_out:
            result.notes.append(
                f"{self._left_out} epochs of other loaders are not recorded: the limit is {_MOST_LOADERS} loaders."
            )
        if not periods:
            return result
        name = next(iter(periods))
        recording = self._recorders[name].recording(self.figures)
        stats = recording.stats()
        if stats.total.batches == periods[name].batches:  # all were recorded
            periods[name] = stats.total  # the verdict, the page and the table are about the same moments
        result.verdict = stats.verdict
        result.notes += recording.log
        suffix = f"-rank{self.rank}" if self._ranks > 1 else ""
        file, page = (out.with_name(f"{out.name}{suffix}{end}") for end in (".json.gz", ".html"))
        recording.save(file)
        page.write_text(page_text(recording), "utf-8")
        result.paths = [str(file), str(page)]
        return result


@contextmanager
def _recorded() -> Iterator[_Recorded]:
    recorded = _Recorded()
    with install():
        recorded.figures.open()
        watchers.append(recorded.watch)
        try:
            yield recorded
        finally:
            watchers.remove(recorded.watch)
            recorded.figures.close()


# Any: a loader of feedline or torch.
def _name_of(loader: Any) -> str:
    """Return a name for a loader: the class of its dataset, and the line of the program that iterates over it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{type(loader.dataset).__name__}, {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _distinct(name: str, names: Iterable[str]) -> str:
    number = sum(other.partition(" (")[0] == name for other in names) + 1
    return name if number == 1 else f"{name} ({number})"


# -- torch's own loader, for --compare -------------------------------------------------------------------------------


class _TorchTimes:
    """Times of one torch loader."""

    def __init__(self) -> None:
        self.batches = self.waited = self.started = 0
        self._elapsed = self._begun = self._last = 0
        self._is_first = True

    def begin(self, begun: int) -> None:
        self._elapsed += self._last - self._begun
        self._begun = begun
        self._is_first = True
        self._wait(begun)

    def got(self, asked: int, *, is_batch: bool) -> None:
        self._wait(asked)
        self.batches += is_batch
        if self._is_first and is_batch:
            self.started += self._last - self._begun
            self._is_first = False

    def _wait(self, since: int) -> None:
        self._last = time.monotonic_ns()
        self.waited += self._last - since

    def period(self) -> Period:
        elapsed = self._elapsed + self._last - self._begun
        stall = stall_of(self.waited, self.started, elapsed)
        waits = {"start": self.started / 1e9, "next()": (self.waited - self.started) / 1e9}
        return Period(self.batches, 0, elapsed / 1e9, stall, self.started / 1e9, waits)


class _TimedTorch:
    """All torch loaders that iterate in this process."""

    rank = 0

    def __init__(self) -> None:
        self._times: dict[str, _TorchTimes] = {}

    def times_of(self, loader: object) -> _TorchTimes:
        times: _TorchTimes | None = vars(loader).get("_feedline_times")
        if times is None:
            times = vars(loader)["_feedline_times"] = _TorchTimes()
            self._times[_distinct(_name_of(loader), self._times)] = times
        return times

    def result(self, out: Path) -> Result:
        periods = {name: times.period() for name, times in self._times.items()}
        return Result(dict(sorted(periods.items(), key=lambda item: -item[1].wait_s)))


@contextmanager
def _timed_torch() -> Iterator[_TimedTorch]:
    """Time `iter(loader)` of torch's loaders, and each `next()` of their iterators, including those of subclasses."""
    timed = _TimedTorch()
    # Any: classes of torch and torchdata whose methods are replaced temporarily.
    iterators: Any = torch.utils.data.dataloader._BaseDataLoaderIter
    loaders: list[Any] = [torch.utils.data.dataloader.DataLoader]
    with suppress(ImportError):  # it is not installed
        loaders.append(importlib.import_module("torchdata.stateful_dataloader").StatefulDataLoader)
    originals, advance = [kind.__iter__ for kind in loaders], iterators.__next__

    def timing(iterate: Callable[[object], Any]) -> Callable[[object], object]:
        def timed_iter(loader: object) -> object:
            begun = time.monotonic_ns()
            times = timed.times_of(loader)
            iterator = iterate(loader)
            times.begin(begun)
            iterator._feedline_times = times
            return iterator

        return timed_iter

    def timed_next(iterator: object) -> object:
        asked, is_batch = time.monotonic_ns(), False
        try:
            batch = advance(iterator)
            is_batch = True
            return batch
        finally:
            times = vars(iterator).get("_feedline_times")
            if times is not None:
                times.got(asked, is_batch=is_batch)

    try:
        iterators.__next__ = timed_next
        for kind, iterate in zip(loaders, originals, strict=True):
            kind.__iter__ = timing(iterate)
        yield timed
    finally:
        iterators.__next__ = advance
        for kind, iterate in zip(loaders, originals, strict=True):
            kind.__iter__ = iterate


# -- both, one after the other ---------------------------------------------------------------------------------------


def _compare(arguments: argparse.Namespace, out: Path) -> None:
    words = ["-m", *arguments.module] if arguments.module is not None else arguments.program
    with tempfile.TemporaryDirectory(prefix="feedline-") as folder:
        results = {}
        for name in ("torch", "feedline"):
            file = Path(folder) / f"{name}.json"
            options = ["--loader", name, "--figures", str(file), "-o", str(out)]
            code = _call([sys.executable, "-m", "feedline", "profile", *options, *words])
            if code:
                sys.stderr.write(
                    f"feedline: Cannot compare: with {name}'s loader, the program failed with exit code {code}.\n"
                )
                raise SystemExit(code)
            figures = json.loads(file.read_text("utf-8"))
            loaders = {loader: Period(**period) for loader, period in figures.pop("loaders").items()}
            results[name] = Result(loaders=loaders, **figures)
    sys.stdout.write(printable(_side_by_side(results["torch"], results["feedline"])))


def _call(command: list[str]) -> int:
    """Run a program to its end, even if this one is interrupted: Ctrl-C reaches both."""
    process = subprocess.Popen(command)
    while True:
        try:
            code = process.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            if process.poll() is not None:
                raise


def _side_by_side(torchs: Result, ours: Result) -> str:
    others = dict(torchs.loaders)
    table = [["", *_HEADS]]
    for name, mine in ours.loaders.items():
        table.append([name, *[""] * len(_HEADS)])
        theirs = others.pop(name, None)
        if theirs is not None:
            table.append(["  torch", *_cells(theirs)])
        table.append(["  feedline", *_cells(mine)])
        if theirs is not None and theirs.batches_per_s:
            ratio = mine.batches_per_s / theirs.batches_per_s
            table.append(["  feedline / torch", "", f"{ratio:.2f}x", *[""] * (len(_HEADS) - 2)])
    for name, theirs in others.items():
        table += [[name, *[""] * len(_HEADS)], ["  torch", *_cells(theirs)]]
    return _paragraphs(ours, aligned(table))
