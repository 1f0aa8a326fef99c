"""Sizes that people write: 4_000_000_000, "4GB", "512 MiB"."""

from __future__ import annotations

import operator
import re
from typing import Any, overload

from feedline.errors import BadOption

_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def bytes_in(text: str) -> int | None:
    """Return a text as a number of bytes; None if it is none.

    Example:
        >>> bytes_in("4GB"), bytes_in("1.5 KiB"), bytes_in("4096"), bytes_in("much")
        (4000000000, 1536, 4096, None)
    """
    match = _TEXT.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        return None
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


@overload
def byte_count(name: str, size: int | str, *, least: int = 1) -> int: ...


@overload
def byte_count(name: str, size: int | str | None, *, least: int = 1) -> int | None: ...


def byte_count(name: str, size: Any, *, least: int = 1) -> int | None:
    """Return an option that is a number of bytes as one; None if it is not given.

    Args:
        name: of the option.
        size: an integer, or a text such as "4GB".
        least: how many bytes it has to be.

    Raises:
        BadOption: it is no such number.

    Example:
        >>> byte_count("memory", "4GB"), byte_count("memory", "1.5 KiB"), byte_count("memory", 17)
        (4000000000, 1536, 17)
    """
    if size is None:
        return None
    count = bytes_in(size) if isinstance(size, str) else _integer(size)
    if count is None or count < least:
        why = "no number of bytes" if count is None else f"less than {least}, the fewest bytes that make sense"
        raise BadOption(f"{name}={size!r} is {why}. Give an integer, or a text such as '4GB' or '512MiB'.")
    return count


# Any: what a user gives.
def _integer(size: Any) -> int | None:
    if isinstance(size, bool):
        return None
    try:
        return operator.index(size)
    except TypeError:
        return None
