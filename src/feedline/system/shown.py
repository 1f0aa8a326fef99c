"""Texts for people: names and numbers in messages, with nothing that a terminal interprets."""

from __future__ import annotations


def printable(text: str) -> str:
    r"""Return a text without anything a terminal would interpret: control and similar characters become escapes.

    Line feeds stay. Names from files may hold anything, including characters that change the text direction.

    Example:
        >>> printable("a\x1b[2Jb\u202e.jpg")
        'a\\x1b[2Jb\\u202e.jpg'
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign == "\n" else ascii(sign)[1:-1] for sign in text)


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun, singular or plural.

    Example:
        >>> counted(1, "worker"), counted(3, "worker"), counted(2, "batch", "batches")
        ('1 worker', '3 workers', '2 batches')
    """
    return f"{count} {one if count == 1 else many or one + 's'}"


def percent(share: float, digits: int = 0) -> str:
    """Return a share in percent."""
    return f"{100 * share:.{digits}f} %"


def call_of(value: object) -> str:
    """Return the call that makes an object whose public attributes are named like its options.

    Example:
        >>> from types import SimpleNamespace
        >>> call_of(SimpleNamespace(size=8, _cache=[]))
        'SimpleNamespace(size=8)'
    """
    options = [f"{name}={option!r}" for name, option in vars(value).items() if not name.startswith("_")]
    return f"{type(value).__name__}({', '.join(options)})"
