"""Checks of options that users pass: each returns the option, or raises `BadOption` with its name and value."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any, TypeVar

import numpy as np

from feedline.errors import BadOption

T = TypeVar("T")
_INFINITE = math.inf


# object and Any, throughout: what a user passes may be of any type.
def checked_flag(name: str, value: object) -> bool:
    """Return an option that is True or False."""
    if not isinstance(value, bool):
        raise BadOption(f"{name}={value!r} is not True or False.")
    return value


def checked_count(name: str, value: object, least: int = 1) -> int:
    """Return an option that is a whole number, also of NumPy, but no boolean."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise BadOption(f"{name}={value!r} is not an integer of at least {least}.")
    return int(value)


def checked_choice(name: str, value: T, choices: Collection[T]) -> T:
    """Return an option that is one of these values."""
    if value not in choices:
        raise BadOption(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}.")
    return value


def checked_number(
    name: str, value: Any, *, low: float = -_INFINITE, high: float = _INFINITE, above: float = -_INFINITE
) -> float:
    """Return an option that is a finite number from `low` to `high`, and larger than `above`."""
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and low <= number <= high and above < number):
        limits = [f" {word} {limit:g}" for word, limit in (("from", low), ("to", high), ("above", above))]
        raise BadOption(f"{name}={value!r} is not a number{''.join(text for text in limits if 'inf' not in text)}.")
    return number


def checked_numbers(name: str, value: Any, count: int, **limits: float) -> tuple[float, ...]:
    """Return an option that consists of so many finite numbers, within limits as for `checked_number`."""
    if not hasattr(value, "__len__") or len(value) != count:
        raise BadOption(f"{name}={value!r} does not consist of {count} numbers.")
    return tuple(checked_number(f"{name}={value!r}: {place}", one, **limits) for place, one in enumerate(value))


def checked_range(name: str, value: object, **limits: float) -> tuple[float, float]:
    """Return an option that consists of a minimum and a maximum, within limits as for `checked_number`."""
    least, most = checked_numbers(name, value, 2, **limits)
    if least > most:
        raise BadOption(f"{name}={value!r} is not a range. Put the lower number first.")
    return least, most
