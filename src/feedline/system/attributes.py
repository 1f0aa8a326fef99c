"""What an object holds in its dictionary and its slots, read without running its code.

Asking for the dictionary of an object has a price for whoever uses it afterwards: Python 3.11 and 3.12 keep attributes
in an array until somebody asks, and in a dictionary from then on. For a dataset of tiny samples whose `__getitem__`
reads two attributes, that is 8 % of its time in every epoch to come. So what is only looked for is looked for with
`held_by`, and the names are asked for when there is something to tell. Test: tests/system/test_attributes.py
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections import deque
from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

MOST = 2000
"""Attributes of one object that are looked at."""

_IN_AN_ARRAY = 1 << 4
"""Of a class: Python looks after the dictionaries of its objects (Py_TPFLAGS_MANAGED_DICT)."""

_CONTAINERS = (dict, list, tuple, deque, set, frozenset)


# Any: whatever the user has made.
def attributes_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values of what an object holds.

    Example:
        >>> class Point:
        ...     def __init__(self):
        ...         self.x, self.y = 1, 2
        >>> list(attributes_of(Point()))
        [('x', 1), ('y', 2)]
    """
    for name, descriptor in _descriptors(type(value)):
        try:
            held = descriptor.__get__(value)
        except AttributeError:
            continue  # a slot that was not filled
        if type(descriptor) is MemberDescriptorType:
            yield name, held
        elif held is not None:
            yield from list(itertools.islice(dict.items(held), MOST))


def held_by(value: Any) -> Iterator[Any]:
    """Yield what an object holds, without names. Its attributes stay as quick to read as they were.

    Example:
        >>> class Point:
        ...     def __init__(self):
        ...         self.x, self.y = 1, 2
        >>> list(held_by(Point()))
        [1, 2]
    """
    kind = type(value)
    has_slots = any(name != "__dict__" for name, _ in _descriptors(kind))
    if kind.__flags__ & _IN_AN_ARRAY and not has_slots and not issubclass(kind, _CONTAINERS):
        held = [part for part in gc.get_referents(value) if part is not kind]
        if len(held) != 1 or type(held[0]) is not dict:  # which may be the dictionary itself: then it is there already
            yield from itertools.islice(held, MOST)
            return
    for _, part in attributes_of(value):
        yield part


def attribute_of(value: Any, name: str) -> Any:
    """Return what an object holds under a name, whatever its class has under it; None if it holds nothing.

    Its attributes stay as quick to read as they were, unless the class has that name, too.

    Example:
        >>> class Point:
        ...     y = 2
        ...     def __init__(self):
        ...         self.x = 1
        >>> attribute_of(Point(), "x"), attribute_of(Point(), "y")
        (1, None)
    """
    if any(name in vars(base) for base in type(value).__mro__):
        return next((held for found, held in attributes_of(value) if found == name), None)
    try:
        return object.__getattribute__(value, name)
    except AttributeError:
        return None


_places: weakref.WeakKeyDictionary[type, list[tuple[str, Any]]] = weakref.WeakKeyDictionary()


def _descriptors(kind: type) -> list[tuple[str, Any]]:
    """Return where objects of a class keep what they hold: its slots and its dictionary."""
    if kind not in _places:
        members = [member for base in kind.__mro__ for member in list(vars(base).items())]
        _places[kind] = [
            (name, place)
            for name, place in members
            if type(place) is MemberDescriptorType or (name == "__dict__" and type(place) is GetSetDescriptorType)
        ]
    return _places[kind]
