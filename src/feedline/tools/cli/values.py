"""Values of options, read from the command line and checked: the functions that argparse calls as `type`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from feedline.datasets.derived.objects import check_name
from feedline.errors import BadOption
from feedline.system.files import make_folder_for

N = TypeVar("N", int, float)


def at_least(least: int) -> Callable[[str], int]:
    """Return a function that reads a whole number of at least `least`."""
    return _number(int, lambda value: value >= least, f"less than {least}")


def _number(kind: Callable[[str], N], accepts: Callable[[N], bool], why_not: str) -> Callable[[str], N]:
    """Return a parser for numbers of this kind; `why_not` completes the message "... is" about a rejected number."""

    def read(text: str) -> N:
        value = kind(text)
        if not accepts(value):
            raise argparse.ArgumentTypeError(f"{text} is {why_not}")
        return value

    read.__name__ = "number"  # argparse uses it in the message about a text that is not a number
    return read


port = _number(int, lambda port: 0 <= port < 1 << 16, "not a port: give 0 for a free one, or 1 to 65535")
positive = _number(float, lambda value: value > 0, "not more than 0")
step_ms = _number(float, lambda step: 0 <= step < math.inf, "not a valid time: give milliseconds, 0 or more")
share = _number(float, lambda share: 0 <= share <= 1, "not between 0 and 1")


def benchmark(text: str) -> str:
    """Read what to measure: the name of a set, or a dataset in Python."""
    if text not in ("quick", "images") and ":" not in text:
        try:
            check_name(text)
        except BadOption as exc:
            raise argparse.ArgumentTypeError(f"{text!r} is neither quick nor images nor a dataset. {exc}") from exc
    return text


def picture(text: str) -> Path:
    """Read the path of a plot, and check that it can be written."""
    if not text.endswith(".svg"):
        raise argparse.ArgumentTypeError(f"{text!r}: plots are written as SVG, so name a file that ends in .svg")
    try:
        make_folder_for(Path(text))  # fail before a minute of measuring is lost
    except BadOption as exc:
        raise argparse.ArgumentTypeError(str(exc)) from exc
    return Path(text)


def factor(text: str) -> float:
    """Read a factor such as 0.5x."""
    try:
        return positive(text.removesuffix("x"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a factor such as 0.5x") from None


def step_change(text: str) -> tuple[float, float | None]:
    """Read the factor by which to multiply the time of a step, and the time in seconds to use instead, if any."""
    for unit, seconds in (("ms", 1e-3), ("us", 1e-6), ("s", 1.0)):
        if text.endswith(unit):
            return 1.0, factor(text.removesuffix(unit)) * seconds
    return factor(text), None


def stage_change(text: str) -> tuple[str, float]:
    """Read the name of a stage, and the factor of its time."""
    name, _, change = text.rpartition("=")
    if not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=0.5x")
    return name, factor(change)


def token(text: str) -> int | bool:
    """Read a token id; True for auto."""
    try:
        return True if text == "auto" else at_least(0)(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a token id nor auto") from None


def names(text: str) -> tuple[str, ...]:
    """Read comma-separated names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def pixels(text: str) -> int | tuple[int, int]:
    """Read the size of an image: its shorter side, or width and height."""
    try:
        width, _, height = text.lower().partition("x")
        return (int(width), int(height)) if height else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an image size such as 256 or 320x240") from None


def fields(text: str) -> dict[str, str]:
    """Read new names of fields, and for each the old one."""
    pairs = [(new.strip(), old.strip() or new.strip()) for new, _, old in (one.partition("=") for one in names(text))]
    if len({new for new, _ in pairs}) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} names a field twice")
    return dict(pairs)
