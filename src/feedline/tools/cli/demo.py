"""`feedline demo`: the same training with torch's loader and with feedline, a table, and a report of the run."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch

from feedline import record
from feedline.errors import BadOption
from feedline.insight.recording import Recording
from feedline.system.failures import words
from feedline.system.files import make_folder_for
from feedline.system.limits import shared_bytes
from feedline.system.shown import counted, percent
from feedline.tools.cli import options
from feedline.tools.cli.bench import WORKER_COUNT, add_rounds, both_loaders
from feedline.tools.cli.demo_training import Training, peak_mb
from feedline.tools.cli.demo_trials import Open, Resuming, kill_worker
from feedline.tools.cli.pictures import PATTERNS, UsualPictures, picture_folder, write_pictures
from feedline.tools.cli.report import page_text
from feedline.tools.measure import load, rows
from feedline.tools.measure.harness import (
    FEEDLINE,
    TORCH,
    Entry,
    Figures,
    LoaderLike,
    Outcome,
    Side,
    close,
    expected_warnings,
    ratio,
    worker_arguments,
)
from feedline.tools.measure.workloads import ReadySamples, TinyMap
from feedline.tools.screen import Screen, Table

SIDES = (Side(TORCH), Side(FEEDLINE))
BATCH_SIZE = 16  # 9.6 MB: five batches fit into the 64 MB of shared memory that a container has by default
LEAST_SHARED = 400 << 20
"""Bytes of shared memory that torch's loader needs for batches of 38 MB."""
TRAINED_S, BUDGET_S = 22.0, 36.0
"""Seconds after the start by which training and the other measurements should end: a slow machine runs fewer rounds."""
QUIET_CORES = 0.2
LONGEST_PATH = 70
"""The longest path of a folder for sockets, in bytes: socket paths are limited to 104, and 32 follow the folder."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("--images", type=options.at_least(64), default=320, help="images to draw and train on (320)")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        default=Path("feedline-demo.html"),
        metavar="PAGE.html",
        help="the report (%(default)s)",
    )
    add_rounds(parser, how_many="5, fewer on a slow machine")


def run(arguments: argparse.Namespace) -> None:
    """Run the whole demo; it leaves nothing but the report."""
    screen, began_s, own_s, busy_s = Screen(), time.monotonic(), sum(os.times()[:4]), load.busy_seconds()
    out: Path = arguments.out.absolute()
    if out.is_dir():
        raise BadOption(f"The report cannot be written to {out}: that is a folder. Choose another file with -o.")
    make_folder_for(out)  # fail before a minute is lost
    torch.set_num_threads(1)  # the workers need the other cores
    with ExitStack() as stack:
        stack.enter_context(expected_warnings())
        with _writing("The images", "Set TMPDIR to a folder with 100 MB of free space."):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feedline-")))
            if len(os.fsencode(folder)) <= LONGEST_PATH:
                stack.callback(setattr, tempfile, "tempdir", tempfile.tempdir)
                tempfile.tempdir = str(folder)  # a killed torch worker leaves its socket here
            draw(folder / "pictures", arguments.images, screen)
        table = compare(folder, arguments, screen, began_s)
        recording = Recording.load(folder / "run.json")
    screen.table(table)
    screen.line("again: images that were read twice. x torch: above 1, feedline is better.")
    busy_s = None if busy_s is None else (load.busy_seconds() or 0.0) - busy_s
    others = load.other_cores(busy_s, sum(os.times()[:4]) - own_s, time.monotonic() - began_s)
    if others is not None and others > QUIET_CORES:
        screen.line(f"Other programs used {others:.1f} cores meanwhile. Run it again on a quiet machine.")
    with _writing("The report", "Choose another file with -o."):
        out.write_text(page_text(recording, table), "utf-8")
    screen.line("Report of this run: ", (out.as_uri(), f"link {out.as_uri()}"), wraps=False)


@contextmanager
def _writing(what: str, advice: str) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        raise BadOption(f"{what} could not be written: {words(exc)}. {advice}") from exc


def draw(folder: Path, count: int, screen: Screen) -> None:
    """Draw the images, showing progress."""
    with screen.bar(quiet=not screen.is_terminal) as bar:
        bar.begin("drawing images", count)
        for _ in write_pictures(folder, count):
            bar.update(advance=1)
    screen.line(f"{count} JPEG images of {len(PATTERNS)} patterns: which is which?")


def compare(folder: Path, arguments: argparse.Namespace, screen: Screen, began_s: float) -> Table:
    """Train and measure with both loaders; return the results. The recording of feedline's training is in `folder`."""
    datasets = {TORCH: UsualPictures(folder / "pictures"), FEEDLINE: picture_folder(folder / "pictures")}
    # Workers that are not forked import torch when they start. That should not be measured in every epoch.
    is_forked = multiprocessing.get_start_method() == "fork"

    def opened(side: Side, *, shuffle: bool = True, **more: object) -> LoaderLike:
        workers = worker_arguments(WORKER_COUNT) | {"persistent_workers": not is_forked}
        return side.open(datasets[side.library], batch_size=BATCH_SIZE, shuffle=shuffle, **workers, **more)

    screen.line(
        f"Training the same network in the same order, alternately, with {WORKER_COUNT} workers: torch's loader with "
        "Pillow and numpy, feedline with feedline.images.\n"
    )
    trained = train(opened, arguments, screen, folder / "run.json", until_s=began_s + TRAINED_S)
    screen.line("\nOther data, a resumed epoch, and a killed worker ...\n")
    resuming = Resuming(opened)
    entries = [*ready_samples(arguments, screen), *resuming.entries()]
    outcomes = rows.measure(entries, arguments, until_s=began_s + BUDGET_S)
    return Table(
        f"Median of {counted(len(trained[0].rounds), 'alternating round')} [lowest..highest], {WORKER_COUNT} workers",
        ["", "torch's loader", "feedline", "x torch"],
        [
            *_training_rows(*trained),
            *_other_rows(outcomes, resuming.batch_count * BATCH_SIZE),
            ["a worker is killed", *(kill_worker(opened, side) for side in SIDES), ""],
        ],
        numbers=(1, 2, 3),
    )


def ready_samples(arguments: argparse.Namespace, screen: Screen) -> list[Entry]:
    """Return both loaders with samples that cost nothing to make, in small and in large batches."""
    entries = [*both_loaders("tiny", TinyMap(400_000), 64, WORKER_COUNT, arguments)]
    shared = shared_bytes()
    if shared is None or shared >= LEAST_SHARED:
        return [*entries, *both_loaders("38 MB", ReadySamples(1_000_000), 64, WORKER_COUNT, arguments)]
    screen.line(
        f"Skipping batches of 38 MB: torch's loader needs more shared memory for them than the {shared >> 20} MB "
        "available here (docker run --shm-size=1g).\n"
    )
    return entries


def train(opened: Open, arguments: argparse.Namespace, screen: Screen, file: Path, *, until_s: float) -> list[Outcome]:
    """Train with both loaders alternately, epoch by epoch, showing every batch; record feedline's."""
    trainings = {side: Training(opened(side)) for side in SIDES}
    entries = [
        Entry({}, side, partial(_epoch, training, side.name, screen), partial(peak_mb, partial(opened, side)))
        for side, training in trainings.items()
    ]
    with record(trainings[Side(FEEDLINE)].loader, file):
        outcomes = rows.measure(entries, arguments, until_s=until_s, quiet=True)
    for training in trainings.values():
        close(training.loader)
    return outcomes


def _epoch(training: Training, name: str, screen: Screen) -> Figures:
    with screen.bar(stays=True) as bar:
        bar.begin(f"epoch {training.epochs + 1}  {name:8}", len(training.loader))
        epoch = training.epoch(lambda epoch: bar.update(advance=1, note=str(epoch)))
        bar.update(note=str(epoch))
    return {"images_per_s": epoch.images_per_s, "stall": epoch.stall}


def _training_rows(torchs: Outcome, ours: Outcome) -> Iterator[Sequence[str]]:
    yield _row("train: JPEG images/s", "images_per_s", "{:,.0f}", torchs, ours)
    stalls = [found.spread("stall") for found in (torchs, ours)]
    yield ["  waiting for data", *(percent(found.median) if found else "" for found in stalls), ""]
    if torchs.peak_pss_mb and ours.peak_pss_mb:
        sizes = [f"{found.peak_pss_mb:,.0f} MB" for found in (torchs, ours)]
        yield ["  peak memory", *sizes, f"{torchs.peak_pss_mb / ours.peak_pss_mb:.2f}"]


def _other_rows(outcomes: Sequence[Outcome], done: int) -> Iterator[Sequence[str]]:
    shown = {
        "tiny": ("tiny samples/s", "samples_per_s", "{:,.0f}"),
        "38 MB": ("38 MB batches/s", "batches_per_s", "{:,.1f}"),
        "resume": (f"resume at image {done}", "seconds", "{:.2f} s"),
    }
    for torchs, ours in zip(outcomes[::2], outcomes[1::2], strict=True):
        row = _row(*shown[str(ours.case["data"])], torchs, ours)
        if ours.case["data"] == "resume":
            row[1:3] = f"{row[1]}, {done} again", f"{row[2]}, 0 again"
        yield row


def _row(what: str, figure: str, form: str, torchs: Outcome, ours: Outcome) -> list[str]:
    found = ratio(ours, torchs, figure, lower_is_better=figure == "seconds")
    spreads = [outcome.spread(figure) for outcome in (torchs, ours)]
    return [what, *(form.format(one.median) if one else "" for one in spreads), rows.times(found, with_range=True)]
