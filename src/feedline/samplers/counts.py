"""How many: the one check that several samplers make."""

from __future__ import annotations


def is_count(value: object) -> bool:
    """True for an integer above 0; True itself is none.

    Example:
        >>> is_count(3), is_count(0), is_count(True), is_count(3.0)
        (True, False, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
