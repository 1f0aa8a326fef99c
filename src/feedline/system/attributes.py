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
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple

MOST = 2000
"""Maximum number of attributes of one object that are examined."""

_IN_AN_ARRAY = 1 << 4
"""Flag of a class: Python manages the dictionaries of its objects (Py_TPFLAGS_MANAGED_DICT)."""

_IN_PYTHON = 1 << 9
"""Flag of a class: it was made by a `class` statement, or by C code in the same way (Py_TPFLAGS_HEAPTYPE)."""


class _Layout(NamedTuple):
    """Where objects of a class keep what they hold."""

    places: list[tuple[str, MemberDescriptorType | GetSetDescriptorType]]
    """Its slots and its dictionary."""
    is_plain: bool
    """True if objects hold nothing but attributes, in an array or in a dictionary that was accessed."""


def attributes_of(value: object) -> list[tuple[str, object]]:
    """Return the names and values that an object holds.

    Example:
        >>> class Point:
        ...     def __init__(self):
        ...         self.x, self.y = 1, 2
        >>> attributes_of(Point())
        [('x', 1), ('y', 2)]
    """
    found: list[tuple[str, object]] = []
    for name, descriptor in _layout_of(type(value)).places:
        try:
            held = descriptor.__get__(value)
        except AttributeError:
            continue  # an empty slot
        if type(descriptor) is MemberDescriptorType:
            found.append((name, held))
        elif held is not None:
            found += itertools.islice(dict.items(held), MOST)
    return found


def held_by(value: object) -> list[Any]:
    """Return the values that an object holds, without names. Its attributes stay as fast to access as they were.

    Example:
        >>> class Point:
        ...     def __init__(self):
        ...         self.x, self.y = 1, 2
        >>> held_by(Point())
        [1, 2]
    """
    kind = type(value)
    if _layout_of(kind).is_plain:
        held = [part for part in gc.get_referents(value) if part is not kind]
        if len(held) != 1 or not issubclass(type(held[0]), dict):  # else it may be the object's own dictionary
            return held[:MOST]
    return [part for _, part in attributes_of(value)]


class _Plain:
    pass


_layouts: weakref.WeakKeyDictionary[type, _Layout] = weakref.WeakKeyDictionary()


def _layout_of(kind: type) -> _Layout:
    if type(kind) is not type:  # a metaclass may define its own comparison and hash
        return _find_layout(kind)
    layout = _layouts.get(kind)
    if layout is None:
        layout = _layouts[kind] = _find_layout(kind)
    return layout


def _find_layout(kind: type) -> _Layout:
    places = [
        (name, place)
        for base in kind.__mro__
        for name, place in list(vars(base).items())
        if type(place) is MemberDescriptorType or (name == "__dict__" and type(place) is GetSetDescriptorType)
    ]
    is_plain = (
        bool(kind.__flags__ & _IN_AN_ARRAY)
        and all(name == "__dict__" for name, _ in places)
        and all(base.__flags__ & _IN_PYTHON for base in kind.__mro__[:-1])
        and kind.__basicsize__ == _Plain.__basicsize__  # objects of C classes have other parts
    )
    return _Layout(places, is_plain)
