"""`feedline demo`: the same training with torch's loader and with feedline, a table, and a report of the run."""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from multiprocessing import util
from pathlib import Path
from typing import Any

import torch

from feedline import record
from feedline.errors import BadOption, InternalError, WorkerWarning
from feedline.insight.recording import Recording
from feedline.system.failures import words
from feedline.system.files import make_folder_for
from feedline.system.shown import counted, percent
from feedline.tools.advise.page import contents, page_of
from feedline.tools.cli import options
from feedline.tools.cli.bench import WORKER_COUNT, both_loaders
from feedline.tools.cli.demo_training import (
    PATTERNS,
    Training,
    UsualPictures,
    peak_mb,
    picture_folder,
    write_pictures,
)
from feedline.tools.measure import harness, rows
from feedline.tools.measure.harness import FEEDLINE, TORCH, Entry, Figures, LoaderLike, Outcome, Side, close
from feedline.tools.measure.workloads import ReadySamples, TinyMap
from feedline.tools.screen import Screen, Table

SIDES = (Side(TORCH), Side(FEEDLINE))
BATCH_SIZE = 16  # 9.6 MB: five batches fit into the 64 MB of shared memory that a container has by default
ROUNDS = argparse.Namespace(rounds=5, seconds=0.5, max_other_cores=0.2, warmup=8)
TRAINED_S, BUDGET_S = 17.0, 28.0
"""Seconds after the start by which training and the other measurements should end: a slow machine runs fewer rounds."""
Open = Callable[..., Any]
"""Opens the loader of a side, with further arguments. Any: torch's loader or feedline's."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument("--images", type=options.at_least(64), default=320, help="images to draw and train on (320)")
    page = Path("feedline-demo.html")
    parser.add_argument("-o", "--out", type=Path, default=page, metavar="PAGE.html", help="the report (%(default)s)")


def run(arguments: argparse.Namespace) -> None:
    """Run the whole demo; it leaves nothing but the report."""
    out: Path = arguments.out.absolute()
    if out.is_dir():
        raise BadOption(f"The report cannot be written to {out}: that is a folder. Choose another file with -o.")
    make_folder_for(out)  # fail before a minute is lost
    screen, began_s = Screen(), time.monotonic()
    torch.set_num_threads(1)  # the workers need the other cores
    with contextlib.ExitStack() as stack:
        stack.enter_context(harness.expected_warnings())
        with _writing("The images", "Set TMPDIR to a folder with 100 MB of free space."):
            util.get_temp_dir()  # for sockets; created here, it is deleted although a worker of torch is killed
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feedline-")))
            draw(folder / "pictures", arguments.images, screen)
        table = compare(folder, screen, began_s)
        recording = Recording.load(folder / "run.json")
    with _writing("The report", "Choose another file with -o."):
        out.write_text(page_of(contents(recording, table)), "utf-8")
    screen.line("Report of this run: ", (out.as_uri(), f"link {out.as_uri()}"), wraps=False)


@contextlib.contextmanager
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


def compare(folder: Path, screen: Screen, began_s: float) -> Table:
    """Train and measure with both loaders, and show the results; leave the recording of a training in `folder`."""
    usual = UsualPictures(folder / "pictures")
    datasets: dict[str, object] = {TORCH: usual, FEEDLINE: picture_folder(folder / "pictures")}

    def opened(side: Side, *, shuffle: bool = True, **more: object) -> LoaderLike:
        workers = harness.worker_arguments(WORKER_COUNT)
        return side.open(datasets[side.library], batch_size=BATCH_SIZE, shuffle=shuffle, **workers, **more)

    screen.line(
        f"Training the same network in the same order, alternately, with {WORKER_COUNT} workers: torch's loader with "
        "Pillow and numpy, feedline with feedline.images.\n"
    )
    trained = train(opened, screen, folder / "run.json", until_s=began_s + TRAINED_S)
    screen.line("\nOther data, a resumed epoch, and a killed worker ...\n")
    done = len(usual) * 3 // 4 // BATCH_SIZE
    ready = [
        *both_loaders("tiny", TinyMap(400_000), 64, WORKER_COUNT, ROUNDS),
        *both_loaders("9.6 MB", ReadySamples(1_000_000), BATCH_SIZE, WORKER_COUNT, ROUNDS),
    ]
    entries = [*(replace(entry, warm_up=harness.nothing) for entry in ready), *resumed(opened, done)]
    outcomes = rows.measure(entries, ROUNDS, until_s=began_s + BUDGET_S)
    tiny, large, resuming = zip(outcomes[::2], outcomes[1::2], strict=True)
    resumption = row(f"resume at image {done * BATCH_SIZE}", "seconds", "{:.2f} s", *resuming)
    resumption[1:3] = f"{resumption[1]}, {done * BATCH_SIZE} again", f"{resumption[2]}, 0 again"
    table = Table(
        f"Median of {counted(len(trained[0].rounds), 'alternating round')} [lowest..highest], {WORKER_COUNT} workers",
        ["", "torch's loader", "feedline", "x torch"],
        [
            row("train: JPEG images/s", "images_per_s", "{:,.0f}", *trained),
            *costs(*trained),
            row("tiny samples/s", "samples_per_s", "{:,.0f}", *tiny),
            row("9.6 MB batches/s", "batches_per_s", "{:,.1f}", *large),
            resumption,
            ["a worker is killed", *(kill_worker(opened, side) for side in SIDES), ""],
        ],
        numbers=(1, 2, 3),
    )
    screen.table(table)
    screen.line("again: images that were read twice. x torch: above 1, feedline is better.")
    if any(outcome.disturbed_count for outcome in outcomes):
        screen.line("Other programs used the cores meanwhile. Run it again on a quiet machine.")
    return table


def train(opened: Open, screen: Screen, file: Path, *, until_s: float) -> list[Outcome]:
    """Train with both loaders alternately, epoch by epoch, showing every batch; record feedline's."""

    def epoch_of(training: Training, name: str) -> Figures:
        with screen.bar(stays=True) as bar:
            bar.begin(f"epoch {training.epochs + 1}  {name:8}", len(training.loader))
            epoch = training.epoch(lambda epoch: bar.update(advance=1, note=str(epoch)))
            bar.update(note=str(epoch))
        return {"images_per_s": epoch.images_per_s, "stall": epoch.stall}

    trainings = {side: Training(opened(side)) for side in SIDES}
    entries = [
        Entry({}, side, partial(epoch_of, training, side.name), partial(peak_mb, partial(opened, side)))
        for side, training in trainings.items()
    ]
    with record(trainings[Side(FEEDLINE)].loader, file):
        outcomes = rows.measure(entries, ROUNDS, until_s=until_s, quiet=True)
    for training in trainings.values():
        close(training.loader)
    return outcomes


def row(what: str, figure: str, form: str, torchs: Outcome, ours: Outcome) -> list[str]:
    """Return the row of a figure of both loaders, with their ratio."""
    found = harness.ratio(ours, torchs, figure, lower_is_better=figure == "seconds")
    spreads = [outcome.spread(figure) for outcome in (torchs, ours)]
    return [what, *(form.format(one.median) if one else "" for one in spreads), rows.times(found, with_range=True)]


def costs(torchs: Outcome, ours: Outcome) -> Iterator[list[str]]:
    """Yield the rows about waiting and memory in the training."""
    stalls = [found.spread("stall") for found in (torchs, ours)]
    yield ["  waiting for data", *(percent(found.median) if found else "" for found in stalls), ""]
    if torchs.peak_pss_mb and ours.peak_pss_mb:
        sizes = [f"{found.peak_pss_mb:,.0f} MB" for found in (torchs, ours)]
        yield ["  peak memory", *sizes, f"{torchs.peak_pss_mb / ours.peak_pss_mb:.2f}"]


# -- interrupted epochs ------------------------------------------------------------------------------------------------


def resumed(opened: Open, done: int) -> list[Entry]:
    """Interrupt an epoch after `done` batches; return what to measure: the time from opening a loader to the next.

    Torch's loader saves no state: a program has to read these batches again and throw them away.
    """
    loader = opened(Side(FEEDLINE), seed=0)
    batches = iter(loader)
    for _ in islice(batches, done):
        pass
    state, expected = loader.state_dict(), next(batches)
    close(loader)

    def measure(side: Side) -> Figures:
        began = time.perf_counter()
        if side.library == TORCH:
            loader = opened(side, generator=torch.Generator().manual_seed(0))
            batch = next(islice(loader, done, None))
        else:
            loader = opened(side, seed=0)
            loader.load_state_dict(state)
            batch = next(iter(loader))
        seconds = time.perf_counter() - began
        close(loader)
        if side.library == FEEDLINE and not all(map(torch.equal, batch, expected)):
            raise InternalError("The first batch after resuming differs from the one without an interruption.")
        return {"seconds": seconds}

    return [Entry({}, side, partial(measure, side)) for side in SIDES]


def kill_worker(opened: Open, side: Side) -> str:
    """Kill a worker in the middle of an epoch; return how the epoch ended."""
    others, labels = multiprocessing.active_children(), list[int]()
    loader = opened(side, shuffle=False)
    images = len(loader.dataset)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WorkerWarning)  # it reports the death
            for number, (_, some) in enumerate(loader):
                labels += some.tolist()
                if number == 1:
                    victim = next(child for child in multiprocessing.active_children() if child not in others)
                    victim.kill()
    except (RuntimeError, EOFError, OSError) as exc:  # the last two come from a batch in transit
        # Otherwise torch's signal handler raises once more when the other worker ends. If the exception was that of a
        # batch in transit, the handler may come only now, and interrupt the first call.
        for _ in range(2):
            with contextlib.suppress(RuntimeError):
                victim.join()
        return f"{type(exc).__name__} at {len(labels)}"
    finally:
        close(loader)
    return f"all {images} images" if len(labels) == images else f"{len(labels)} of {images} images"
