"""Sizes as people write them (4_000_000_000, "4GB", "512 MiB"), and checks of sizes that files declare."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable
from typing import Any, overload

from feedline.errors import BadOption, CorruptSource

_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)

VARIABLE = "FEEDLINE_MAX_SAMPLE_BYTES"
"""The environment variable that limits the bytes of one unpacked sample."""
_MOST_BYTES = 1 << 31
What = str | Callable[[], str]


def bytes_in(text: str) -> int | None:
    """Return a text as a number of bytes; None if it cannot be parsed.

    Example:
        >>> bytes_in("4GB"), bytes_in("1.5 KiB"), bytes_in("4096"), bytes_in("much")
        (4000000000, 1536, 4096, None)
    """
    match = _TEXT.fullmatch(text)
    if match is None or (match[3] and not match[2]):
        return None
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def bytes_text(size: float) -> str:
    """Return a number of bytes as readable text.

    Example:
        >>> bytes_text(1536)
        '1.5 KiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


@overload
def byte_count(name: str, size: int | str, *, least: int = 1) -> int: ...


@overload
def byte_count(name: str, size: int | str | None, *, least: int = 1) -> int | None: ...


def byte_count(name: str, size: object, *, least: int = 1) -> int | None:
    """Return an option that is a number of bytes as an integer; None if it is not given.

    Raises:
        BadOption: it is not a number of bytes, as an integer or a text such as "4GB", or less than the least.

    Example:
        >>> byte_count("memory", "4GB"), byte_count("memory", "1.5 KiB"), byte_count("memory", 17)
        (4000000000, 1536, 17)
    """
    if size is None:
        return None
    count = bytes_in(size) if isinstance(size, str) else _integer(size)
    if count is None or count < least:
        why = "not a number of bytes" if count is None else f"less than {least}, the minimum number of bytes"
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


def most_bytes() -> int:
    """Return how many bytes one unpacked sample may take: `$FEEDLINE_MAX_SAMPLE_BYTES`, or 2 GiB.

    Raises:
        BadOption: the variable is not a number of bytes.
    """
    given = os.environ.get(VARIABLE)
    return byte_count(VARIABLE, given) if given else _MOST_BYTES


def check_size(
    what: What,
    size: int,
    *,
    held: int | None = None,
    limit: int | None = None,
    option: str = VARIABLE,
    unit: str = "bytes",
) -> None:
    """Reject an invalid size declared by a file, before anything is allocated or read because of it.

    `what` declares it, by name or by a function that makes the text. The file can hold `held`, and at most `limit` is
    accepted, which the setting `option` raises.

    Raises:
        CorruptSource: it is more than is there, or more than the limit.

    Example:
        >>> check_size("a.npy", 80, held=100, limit=1000)
        >>> check_size("a.npy", 8000, held=100)
        Traceback (most recent call last):
        feedline.errors.CorruptSource: a.npy declares 8000 bytes, but only 100 are there: it is cut off or damaged. ...
    """
    if size < 0 or (held is not None and size > held):
        there = "" if held is None else f", but only {held} are there"
        raise CorruptSource(
            f"{_words(what)} declares {size} {unit}{there}: it is cut off or damaged. Write or copy it again."
        )
    if limit is not None and size > limit:
        raise CorruptSource(
            f"{_words(what)} takes {size} {unit}, and at most {limit} are accepted. If that is right, raise {option}."
        )


def _words(what: What) -> str:
    return what if isinstance(what, str) else what()


class SampleSize:
    """The unpacked size of one sample, added up field by field; at most `limit`, which the setting `option` raises."""

    __slots__ = ("limit", "option", "taken")

    def __init__(self, limit: int | None = None, option: str = VARIABLE) -> None:
        self.limit = most_bytes() if limit is None else limit
        self.option = option
        self.taken = 0

    @property
    def left(self) -> int:
        """How many bytes are left."""
        return self.limit - self.taken

    def add(self, what: What, size: int) -> None:
        """Add the size of a field that is about to be unpacked.

        Raises:
            CorruptSource: the sample would become too large.
        """
        before, self.taken = self.taken, self.taken + size
        check_size(
            lambda: f"{_words(what)}, with the fields before it," if before else _words(what),
            self.taken,
            limit=self.limit,
            option=self.option,
        )
