"""The contents of an object's dictionary and slots, read without running its code.

Accessing an object's dictionary makes later attribute access slower: Python 3.11 and 3.12 keep attributes in an array
until the first access, and in a dictionary from then on. For a dataset of tiny samples whose `__getitem__` reads two
attributes, that costs 8 % of its time in every later epoch. So searches use `held_by`, and names are looked up only
when there is something to report. Test: tests/system/test_attributes.py
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

MOST = 2000
"""Maximum number of attributes of one object that are examined."""

_IN_AN_ARRAY = 1 << 4
"""Flag of a class: Python manages the dictionaries of its objects (Py_TPFLAGS_MANAGED_DICT)."""

_IN_PYTHON = 1 << 9
"""Flag of a class: it was made by a `class` statement, or by C code in the same way (Py_TPFLAGS_HEAPTYPE)."""


# Any: any object of the user's.
def attributes_of(value: object) -> Iterator[tuple[str, object]]:
    """Yield the names and values that an object holds.

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
            continue  # an empty slot
        if type(descriptor) is MemberDescriptorType:
            yield name, held
        elif held is not None:
            yield from list(itertools.islice(dict.items(held), MOST))


def held_by(value: object) -> Iterator[Any]:
    """Yield the values that an object holds, without names. Its attributes stay as fast to access as they were.

    Example:
        >>> class Point:
        ...     def __init__(self):
        ...         self.x, self.y = 1, 2
        >>> list(held_by(Point()))
        [1, 2]
    """
    kind = type(value)
    if _is_plain(kind):
        held = [part for part in gc.get_referents(value) if part is not kind]
        if len(held) != 1 or not issubclass(type(held[0]), dict):  # else it may be the object's own dictionary
            yield from itertools.islice(held, MOST)
            return
    for _, part in attributes_of(value):
        yield part


def _is_plain(kind: type) -> bool:
    """True if objects of a class hold nothing but attributes, in an array or in a dictionary that was accessed."""
    if not kind.__flags__ & _IN_AN_ARRAY or any(name != "__dict__" for name, _ in _descriptors(kind)):
        return False
    if not all(base.__flags__ & _IN_PYTHON for base in kind.__mro__[:-1]):
        return False
    return kind.__basicsize__ == _Plain.__basicsize__  # objects of C classes have other parts


class _Plain:
    pass


_places: weakref.WeakKeyDictionary[type, list[tuple[str, Any]]] = weakref.WeakKeyDictionary()


def _descriptors(kind: type) -> list[tuple[str, Any]]:
    """Return where objects of a class keep their contents: its slots and its dictionary."""
    if type(kind) is not type:  # a metaclass may define its own comparison and hash
        return _find_descriptors(kind)
    if kind not in _places:
        _places[kind] = _find_descriptors(kind)
    return _places[kind]


def _find_descriptors(kind: type) -> list[tuple[str, object]]:
    members = [member for base in kind.__mro__ for member in list(vars(base).items())]
    return [
        (name, place)
        for name, place in members
        if type(place) is MemberDescriptorType or (name == "__dict__" and type(place) is GetSetDescriptorType)
    ]
