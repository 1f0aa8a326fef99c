"""Checks of arguments."""

from __future__ import annotations

import numpy as np

from feedline.errors import BadOption


# object: what a user passes may be of any type.
def check_count(name: str, value: object) -> int:
    """Return a count as an int; reject anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise BadOption(f"{name}={value!r} is not a positive integer.")
    return int(value)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Reject a value that is not one of these."""
    if value not in choices:
        raise BadOption(f"{name}={value!r} is not one of {', '.join(map(repr, choices))}.")
