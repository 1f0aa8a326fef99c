"""The order that people expect of numbered names."""

from __future__ import annotations

import re


def natural(path: str) -> list[tuple[int, str]]:
    """Return what to sort by, so that numbers in names count as numbers.

    Example:
        >>> sorted(["part-10", "part-9"], key=natural)
        ['part-9', 'part-10']
    """
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]
