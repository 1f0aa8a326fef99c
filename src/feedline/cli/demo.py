"""`feedline demo`: make pictures, train on them through feedline, compare with torch's loader."""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from feedline.cli.bench import WORKER_COUNT, compare
from feedline.cli.pictures import PATTERNS, PictureDataset, write_pictures
from feedline.cli.training import Epoch, count_batches, train

HELD_OUT = 5  # one picture in so many is kept for measuring accuracy
BAR_WIDTH = 24


def run(arguments: argparse.Namespace) -> None:
    """Run the whole demo; without a `folder` the pictures are deleted at the end."""
    console, images = Console(), arguments.images
    place: AbstractContextManager[str | Path] = (
        nullcontext(arguments.folder) if arguments.folder is not None else TemporaryDirectory(prefix="feedline-demo-")
    )
    with place as name:
        home = Path(name)
        make_pictures(home, images, console)
        train_on_pictures(home, images, arguments.epochs, console)
        console.print("\nThe same dataset objects through both loaders, in turns:")
        compare(PictureDataset(home, range(images)), arguments)


def make_pictures(folder: Path, images: int, console: Console) -> None:
    """Fill `folder`, showing how far it is."""
    with _progress(console) as progress:
        bar = progress.add_task("drawing pictures", total=images)
        write_pictures(folder, images, report=partial(progress.advance, bar))
    console.print(f"{images} JPEG pictures of {len(PATTERNS)} patterns: which is which?")


def train_on_pictures(folder: Path, images: int, epochs: int, console: Console) -> None:
    """Train, showing every batch in the bar and every epoch as a line."""
    numbers = range(images)
    # Patterns take turns over the numbers, so whole groups are held out to keep them balanced.
    held_out = PictureDataset(folder, [number for number in numbers if number // len(PATTERNS) % HELD_OUT == 0])
    trained = PictureDataset(folder, [number for number in numbers if number // len(PATTERNS) % HELD_OUT != 0])
    console.print(f"training on {len(trained)}, checking on {len(held_out)}, {WORKER_COUNT} workers\n")
    with _progress(console) as progress:
        bar = progress.add_task("training", total=epochs * count_batches(trained))
        advance = partial(progress.advance, bar)
        for epoch in train(trained, held_out, epochs=epochs, worker_count=WORKER_COUNT, report=advance):
            progress.console.print(_describe(epoch))


def _describe(epoch: Epoch) -> str:
    filled = round(epoch.accuracy * BAR_WIDTH)
    return (
        f"epoch {epoch.number:2}  loss {epoch.loss:.3f}  accuracy [bold]{epoch.accuracy:4.0%}[/] "
        f"[green]{'━' * filled}[/][dim]{'─' * (BAR_WIDTH - filled)}[/]  {epoch.images_per_s:,.0f} images/s"
    )


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console, transient=True)
