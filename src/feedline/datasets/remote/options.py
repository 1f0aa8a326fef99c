"""Options of a store, which may be secret."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_PLAIN = ("endpoint_url", "region_name")
"""Options that help to see what is wrong, and say nothing of who asks."""

_SHORTEST = 4
"""Characters of a value that is hidden: shorter ones are words of other texts."""


# Any: options are those of fsspec's file systems.
def without_values(text: str, options: Mapping[Any, Any]) -> str:
    """Return a text without the values of options.

    Example:
        >>> without_values("The key AKIA1234 is unknown", {"key": "AKIA1234", "anon": False})
        'The key *** is unknown'
    """
    for value in sorted(set(_texts(options)), key=len, reverse=True):
        text = text.replace(value, "***")
    return text


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            if name not in _PLAIN or "@" in str(part):
                yield from _texts(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, bytes):
        yield from _texts(value.decode("utf-8", "replace"))
    elif isinstance(value, str) and len(value) >= _SHORTEST:
        yield value
