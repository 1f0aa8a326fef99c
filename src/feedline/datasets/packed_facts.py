"""What `feedline pack` stored with samples: the order and shapes of their fields, and how many samples there are.

Nothing of it is believed: the file may be someone else's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from feedline.errors import CorruptSource


# Any: what JSON holds.
def _facts(stored: str | bytes | None) -> dict[str, Any]:
    try:
        facts = json.loads(stored or "null")
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) and "feedline" in facts else {}


def _fields(stored: str | bytes | None) -> list[dict[str, Any]]:
    fields = _facts(stored).get("fields")
    return [field for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []


def in_packed_order(names: Iterable[str], stored: str | bytes | None) -> list[str]:
    """Return names of fields in the order that `feedline pack` stored with them; as they are if it did not.

    Example:
        >>> in_packed_order(["a", "b", "c"], '{"feedline": 1, "fields": [{"name": "c"}, {"name": "a"}]}')
        ['c', 'a', 'b']
    """
    listed = [field.get("name") for field in _fields(stored)]
    places = {name: place for place, name in enumerate(listed) if isinstance(name, str)}
    return sorted(names, key=lambda name: places.get(name, len(places)))


def check_count(name: str, stored: str | bytes | None, found: int) -> None:
    """Compare how many samples were found with how many `feedline pack` wrote, if it did.

    Raises CorruptSource: there are more or fewer.
    """
    count = _facts(stored).get("count")
    if type(count) is int and count != found:
        raise CorruptSource(
            f"{name} has {found} samples, but {count} were packed. It is damaged, or was changed by another program. "
            "Pack it again, or get another copy."
        )


def check_shapes(name: str, stored: str | bytes | None, found: Mapping[str, tuple[int, ...] | None]) -> None:
    """Compare the shapes of arrays with those that `feedline pack` wrote, if it did.

    Raises CorruptSource: one is another.
    """
    for field in _fields(stored):
        field_name, shape = field.get("name"), field.get("shape")
        is_known = field.get("kind") == "array" and isinstance(field_name, str) and field_name in found
        if is_known and isinstance(shape, list) and found[str(field_name)] != tuple(shape):
            raise CorruptSource(
                f"{name}: samples of {field_name!r} were packed as arrays of shape {tuple(shape)}, and the file says "
                f"{found[str(field_name)]} now. It is damaged, or was changed by another program. Pack it again, or "
                "get another copy."
            )
