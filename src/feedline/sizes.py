"""Sizes that people write: "4096", "4GB", "512 MiB"."""

from __future__ import annotations

import re

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
