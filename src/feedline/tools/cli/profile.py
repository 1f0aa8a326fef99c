"""`feedline profile`: run an unchanged program with feedline's loader, and report what its training waited for.

Every loader that iterates in this process is recorded; other processes (workers, ranks that it starts) are not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

import feedline
from feedline.errors import BadOption, FeedlineError
from feedline.insight.machine_figures import MachineFigures
from feedline.insight.period import Period
from feedline.insight.stats import aligned, shown
from feedline.loader.base import LoaderBase, session_of
from feedline.loader.iteration import watchers
from feedline.loader.recorder import Recorder
from feedline.system.failures import words
from feedline.system.files import make_folder_for
from feedline.system.ranks import share_if_known
from feedline.system.shown import percent, printable
from feedline.tools.advise.page import contents, page_of, text_of
from feedline.tools.cli.run import Script, add_program, installed

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
    add_program(parser)


def run(arguments: argparse.Namespace) -> None:
    """Run the program, then write and report the measurements.

    Raises:
        SystemExit: the program ended itself, with its code; or it iterated over no loader.
        BadOption: the results cannot be written.
    """
    script, pid = Script(arguments), os.getpid()
    out = _out_of(arguments.out, script)
    end: SystemExit | KeyboardInterrupt | None = None
    with _recorded() as found:
        try:
            script.run()
        except (SystemExit, KeyboardInterrupt) as exc:
            end = exc
    if os.getpid() != pid:  # the program has forked, and this is the child process
        if end is not None:
            raise end
        return
    has_failed = isinstance(end, KeyboardInterrupt) or (end is not None and end.code not in (0, None))
    text = ""
    try:
        text = found.report(out)
    except (FeedlineError, OSError) as exc:
        if not has_failed:
            raise BadOption(f"The results could not be written: {words(exc)}. Choose another place with -o.") from exc
        sys.stderr.write(printable(f"feedline: The results could not be written: {exc}\n"))
    sys.stdout.write(printable(text))
    if not text and not has_failed:
        sys.stderr.write(_NOTHING)
        raise SystemExit(NOTHING_ITERATED)
    if end is not None:
        raise end


_NOTHING = (
    "feedline: The program ended without iterating over any DataLoader in this process, so there is nothing to report. "
    "Ranks that a program starts are processes of their own: let the launcher start feedline in each, with torchrun -m "
    "feedline profile train.py.\n"
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


class _Recorded:
    """All loaders that iterate in this process, each with its recorder."""

    def __init__(self) -> None:
        self._recorders: dict[str, Recorder] = {}
        self._left_out = 0
        self._pid = os.getpid()
        self._rank, self._ranks = 0, 1
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
            self._rank, self._ranks = share.rank, share.world_size
            name = _name_of(loader)
            number = sum(other.partition(" (")[0] == name for other in self._recorders) + 1
            self._recorders[name if number == 1 else f"{name} ({number})"] = Recorder(loader, _MOST_ROWS)

    def _pids(self) -> list[int]:
        return [pid for recorder in list(self._recorders.values()) for pid in recorder.pids()]

    def report(self, out: Path) -> str:
        """Write the recording of the loader with the longest waits, and its page; return what to print.

        For ranks other than the first, that is the paths of their files. It is empty if no loader was iterated over.
        """
        if not self._recorders:
            return ""
        periods = {name: recorder.period() for name, recorder in self._recorders.items()}
        periods = dict(sorted(periods.items(), key=lambda item: -item[1].wait_s))
        name = next(iter(periods))
        recording = self._recorders[name].recording(self.figures)
        stats = recording.stats()
        if stats.total.batches == periods[name].batches:  # all were recorded
            periods[name] = stats.total  # the verdict, the page and the table are about the same moments
        suffix = f"-rank{self._rank}" if self._ranks > 1 else ""
        file, page = (out.with_name(f"{out.name}{suffix}{end}") for end in (".json.gz", ".html"))
        recording.save(file)
        content = contents(recording)
        page.write_text(page_of(content), "utf-8")
        if self._rank:
            return f"rank {self._rank}: {file} {page}\n"
        notes = list(recording.log)
        if self._left_out:
            notes.append(f"{self._left_out} epochs of other loaders are not recorded: the limit is {_MOST_LOADERS}.")
        paragraphs = [text_of(content), _table(periods), "\n".join(notes), f"{file}\n{page}"]
        return "\n" + "\n\n".join(filter(None, paragraphs)) + "\n"


def _table(periods: dict[str, Period]) -> str:
    table = [["loader", "batches", "batches/s", "waited", "of the time", "start-up"]]
    for name, period in periods.items():
        waited = shown(period.wait_s - period.starting_s), percent(period.stall, 1)
        table.append([name, f"{period.batches:,}", f"{period.batches_per_s:,.1f}", *waited, shown(period.starting_s)])
    return aligned(table)


@contextmanager
def _recorded() -> Iterator[_Recorded]:
    recorded = _Recorded()
    with installed():
        recorded.figures.open()
        watchers.append(recorded.watch)
        try:
            yield recorded
        finally:
            watchers.remove(recorded.watch)
            recorded.figures.close()


def _name_of(loader: LoaderBase) -> str:
    """Return a name for a loader: the class of its dataset, and the line of the program that iterates over it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return f"{type(loader.dataset).__name__}, {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
