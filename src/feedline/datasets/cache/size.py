"""Sizes that people write: 4_000_000_000, "4GB", "512 MiB"."""

from __future__ import annotations

import re

from feedline.errors import BadOption

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", re.IGNORECASE)


def bytes_of(name: str, size: int | str) -> int:
    """Return a size in bytes.

    Raises:
        BadOption: it is none; `name` is what the option is called.

    Example:
        >>> bytes_of("memory", "4GB"), bytes_of("memory", "1.5 KiB"), bytes_of("memory", 17)
        (4000000000, 1536, 17)
    """
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    match = _TEXT.fullmatch(size) if isinstance(size, str) else None
    if match is None or (match[3] and not match[2]):
        raise BadOption(f"{name}={size!r} is no size. Give bytes, or a text such as '4GB' or '512MiB'.")
    units = _BINARY if match[3] else _UNITS
    count = int(float(match[1]) * units[match[2].upper()])
    if count < 1:
        raise BadOption(f"{name}={size!r} is no room at all.")
    return count
