"""Sizes that people write: 4_000_000_000, "4GB", "512 MiB"."""

from __future__ import annotations

from feedline.errors import BadOption
from feedline.sizes import bytes_in


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
    count = bytes_in(size) if isinstance(size, str) else None
    if count is None:
        raise BadOption(f"{name}={size!r} is no size. Give bytes, or a text such as '4GB' or '512MiB'.")
    if count < 1:
        raise BadOption(f"{name}={size!r} is no room at all.")
    return count
