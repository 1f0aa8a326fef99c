"""Options that several commands share, and checks of their values, which argparse calls as `type`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from feedline.errors import BadOption
from feedline.system.files import make_folder_for

DATASET = (
    "a dataset or loader in Python, module:object or path/to/file.py:object, or a function without arguments that "
    "returns one"
)
FAILED = (
    "4 the dataset cannot be imported or created; 5 every sample raises; 6 it hangs; 7 it crashes or takes too much "
    "memory; 8 it is empty; 1 any other error."
)
"""The exit codes of `main.FAILED`, for the help of commands that try datasets."""


def add_batch_size(parser: argparse._ActionsContainer) -> None:
    """Add `--batch-size`."""
    help_ = "samples in a batch (the loader's, or 32 for a dataset)"
    parser.add_argument("--batch-size", type=at_least(1), metavar="N", help=help_)


def add_plot(parser: argparse._ActionsContainer) -> None:
    """Add `--plot`."""
    parser.add_argument("--plot", type=picture, metavar="FILE.svg", help="also draw the result")


def at_least(least: int) -> Callable[[str], int]:
    """Return a function that reads a whole number of at least `least`."""

    def number(text: str) -> int:  # argparse shows this name if the text is not a number
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return number


def positive(text: str) -> float:
    """Read a number of more than 0."""
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return value


def names(text: str) -> tuple[str, ...]:
    """Read comma-separated names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def picture(text: str) -> Path:
    """Read the path of a plot, and check that it can be written, before a minute of measuring is lost."""
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text!r}: plots are written as SVG, so name a .svg file")
    try:
        make_folder_for(Path(text))
    except BadOption as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    return Path(text)
