"""Numbers of bytes and pixels as people write them."""

from __future__ import annotations

from feedline.sizes import bytes_in


def bytes_text(size: float) -> str:
    """Return a number of bytes for people.

    Example:
        >>> bytes_text(1536)
        '1.5 KiB'
    """
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def bytes_of(text: str) -> int:
    """Read a number of bytes: "500M", "1.5 GiB", "4096".

    Raises:
        ValueError: it is none.

    Example:
        >>> bytes_of("1.5KiB"), bytes_of("2M")
        (1536, 2000000)
    """
    count = bytes_in(text)
    if count is None:
        raise ValueError(f"{text!r} is no number of bytes, such as 500M or 1GiB")
    return count


def size_of(text: str) -> int | tuple[int, int]:
    """Read what pictures are resized to: "256", or "320x240" for width and height.

    Raises:
        ValueError: it is neither.

    Example:
        >>> size_of("256"), size_of("320x240")
        (256, (320, 240))
    """
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"{text!r} is no size of pictures, such as 256 or 320x240")
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))
