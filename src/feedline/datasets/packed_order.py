"""The order of fields that `feedline pack` stored with samples, where a format does not keep it by itself."""

from __future__ import annotations

import json
from collections.abc import Iterable


def in_packed_order(names: Iterable[str], stored: str | bytes | None) -> list[str]:
    """Return names of fields in the order that `feedline pack` stored with them; as they are if it did not.

    Args:
        names: of all fields.
        stored: the JSON that it stored, of which nothing is believed: the file may be someone else's.

    Example:
        >>> in_packed_order(["a", "b", "c"], '{"feedline": 1, "fields": [{"name": "c"}, {"name": "a"}]}')
        ['c', 'a', 'b']
    """
    names = list(names)
    try:
        facts = json.loads(stored or "null")
    except (ValueError, RecursionError):
        return names
    fields = facts.get("fields") if isinstance(facts, dict) and "feedline" in facts else None
    listed = [field.get("name") for field in fields if isinstance(field, dict)] if isinstance(fields, list) else []
    places = {name: place for place, name in enumerate(listed) if isinstance(name, str)}
    return sorted(names, key=lambda name: places.get(name, len(places)))
