"""`feedline demo`: the same training with torch's loader and with feedline, a table, and a report of the run."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from feedline import record
from feedline.errors import BadOption
from feedline.insight.recording import Recording
from feedline.system.failures import words
from feedline.system.limits import shared_bytes
from feedline.tools.bench import load, rows
from feedline.tools.bench.harness import (
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
)
from feedline.tools.bench.workloads import ReadySamples, TinyMap
from feedline.tools.cli.bench import WORKER_COUNT, both_loaders
from feedline.tools.cli.demo_training import Training, peak_mb
from feedline.tools.cli.demo_trials import Resuming, kill_worker
from feedline.tools.cli.pictures import PATTERNS, UsualPictures, picture_folder, write_pictures
from feedline.tools.cli.report import page_text
from feedline.types.screen import Screen, Table
from feedline.types.shown import counted, percent
from feedline.types.terminal import open_screen

SIDES = (Side(TORCH), Side(FEEDLINE))
BATCH_SIZE = 16  # 9.6 MB: five batches fit into the 64 MB of shared memory that a container has by default
LEAST_SHARED = 400 << 20
"""Bytes of shared memory that torch's loader needs for batches of 38 MB."""
TRAINED_S, BUDGET_S = 30.0, 50.0
"""Seconds after the start at which training, and whatever else has rounds, should end: a slow machine has fewer."""
QUIET_CORES = 0.2


def run(arguments: argparse.Namespace) -> None:
    """Run the whole demo; it leaves nothing but the report."""
    screen, began_s, own_s, busy_s = open_screen(), time.monotonic(), sum(os.times()[:4]), load.busy_seconds()
    out: Path = arguments.out.absolute()
    if not os.access(out.parent, os.W_OK) or out.is_dir():  # before a minute is lost
        raise BadOption(f"The report cannot be written to {out}. Choose another file with -o.")
    torch.set_num_threads(1)  # the workers need the other cores
    with ExitStack() as stack:
        stack.enter_context(expected_warnings())
        with _writing("The pictures", "Set TMPDIR to a folder with 100 MB of free space."):
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="feedline-demo-")))
            draw(folder / "pictures", arguments.images, screen)
        table = compare(folder, arguments, screen, began_s)
        recording = Recording.load(folder / "run.json")
    screen.table(table)
    screen.line("x torch: above 1, feedline is better.")
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
    """Draw the pictures, showing progress."""
    with screen.bar(quiet=not screen.is_terminal) as bar:
        bar.begin("drawing pictures", count)
        for _ in write_pictures(folder, count):
            bar.update(advance=1)
    screen.line(f"{count} JPEG pictures of {len(PATTERNS)} patterns: which is which?")


def compare(folder: Path, arguments: argparse.Namespace, screen: Screen, began_s: float) -> Table:
    """Train and measure with both loaders; return the results. The recording of feedline's training is in `folder`."""
    datasets = {TORCH: UsualPictures(folder / "pictures"), FEEDLINE: picture_folder(folder / "pictures")}
    options = {
        "batch_size": BATCH_SIZE,
        "shuffle": True,
        "num_workers": WORKER_COUNT,
        # Workers that are not forked import torch first, which must not be measured in every epoch.
        "persistent_workers": multiprocessing.get_start_method() != "fork",
    }
    openers = [partial(side.open, datasets[side.library], **options) for side in SIDES]
    screen.line(f"The same network, recipe and order for both loaders, {WORKER_COUNT} workers, in turns:\n")
    trained = train(openers, arguments, screen, folder / "run.json", until_s=began_s + TRAINED_S)
    resuming = Resuming(datasets, options)
    ready = [*both_loaders("tiny", TinyMap(400_000), 64, WORKER_COUNT, arguments)]
    if (shared_bytes() or LEAST_SHARED) >= LEAST_SHARED:
        ready += both_loaders("38 MB", ReadySamples(1_000_000), 64, WORKER_COUNT, arguments)
    screen.line("\nOther data, an epoch that is resumed, and a worker that is killed ...\n")
    outcomes = rows.measure([*ready, *resuming.entries()], arguments, until_s=began_s + BUDGET_S)
    killed = [kill_worker(side, datasets[side.library], options) for side in SIDES]
    return Table(
        f"Median of {counted(len(trained[0].rounds), 'round')}, in turns",
        ["", "torch's loader", "feedline", "x torch"],
        [
            *_training_rows(*trained),
            *_other_rows(outcomes, resuming.batches * BATCH_SIZE, arguments.images),
            ["a worker is killed", *(_ended(*found, arguments.images) for found in killed), ""],
        ],
        numbers=(1, 2, 3),
    )


def train(
    openers: Sequence[Callable[[], LoaderLike]],
    arguments: argparse.Namespace,
    screen: Screen,
    file: Path,
    *,
    until_s: float,
) -> list[Outcome]:
    """Train with both loaders in turns, epoch by epoch, showing every batch; record feedline's."""
    trainings = [Training(opened()) for opened in openers]
    with screen.bar(quiet=not screen.is_terminal, threaded=False) as bar, record(trainings[1].loader, file):
        entries = []
        for stage, (side, training, opened) in enumerate(zip(SIDES, trainings, openers, strict=True)):
            bar.begin(f"{side.name:8}", arguments.rounds * len(training.loader))
            measure = partial(_epoch, training, side.name, screen, partial(bar.update, advance=1, stage=stage))
            entries.append(Entry({"data": "pictures"}, side, measure, partial(peak_mb, opened)))
        outcomes = rows.measure(entries, arguments, until_s=until_s, quiet=True)
    for training in trainings:
        close(training.loader)
    return outcomes


def _epoch(training: Training, name: str, screen: Screen, update: Callable[..., None]) -> Figures:
    epoch = training.epoch(lambda epoch: update(note=str(epoch)))
    screen.line(f"epoch {epoch.number}   {name:8} {epoch}")
    return {"images_per_s": epoch.images_per_s, "stall": epoch.stall}


def _training_rows(torchs: Outcome, ours: Outcome) -> Iterator[Sequence[str]]:
    yield _row("train on JPEG files, Pillow : feedline.images", torchs, ours, "images_per_s", "{:,.0f} images/s")
    stalls = [found.spread("stall") for found in (torchs, ours)]
    yield ["    training loop waits for data", *(percent(found.median) if found else "" for found in stalls), ""]
    if torchs.peak_pss_mb and ours.peak_pss_mb:
        sizes = [f"{found.peak_pss_mb:,.0f} MB" for found in (torchs, ours)]
        yield ["    peak memory of all processes", *sizes, f"{torchs.peak_pss_mb / ours.peak_pss_mb:.2f}"]


def _other_rows(outcomes: Sequence[Outcome], done: int, images: int) -> Iterator[Sequence[str]]:
    titles = {"tiny": "tiny samples", "38 MB": "batches of 38 MB that cost nothing to make"}
    *ready, again, resumed = outcomes
    for torchs, ours in zip(ready[::2], ready[1::2], strict=True):
        yield _row(titles[str(ours.case["data"])], torchs, ours, "samples_per_s", "{:,.0f} samples/s")
    what, *cells, better = _row(f"resume after {done} of {images} images", again, resumed, "seconds", "{:.2f} s")
    yield [what, f"{cells[0]}, {done} read again", f"{cells[1]}, none again", better]


def _row(what: str, torchs: Outcome, ours: Outcome, figure: str, form: str) -> list[str]:
    found = ratio(ours, torchs, figure, lower_is_better=figure == "seconds")
    spreads = [outcome.spread(figure) for outcome in (torchs, ours)]
    return [what, *(form.format(one.median) if one else "" for one in spreads), rows.times(found, with_range=True)]


def _ended(delivered: int, error: str, images: int) -> str:
    return f"{error} after {delivered} images" if error else f"{delivered} of {images} images"
