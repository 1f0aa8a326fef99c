"""Test ids for parameters of any kind."""

import re


def named(value: object) -> str:
    """Return a name that is the same in every process: an object's repr without its address."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
