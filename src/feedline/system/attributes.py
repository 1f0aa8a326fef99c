"""The contents of an object's dictionary and slots, read without running its code.

Accessing an object's dictionary makes later attribute access slower: Python 3.11 and 3.12 keep attributes in an array
until the first access, and in a dictionary from then on. For a dataset of tiny samples whose `__getitem__` reads two
attributes, that costs 8 % of its time in every later epoch. So searches use `held_by`, and names are looked up only
when there is something to report. Test: tests/system/test_attributes.py
"""

from __future__ import annotations

import gc
import itertools
from types import GetSetDescriptorType, MemberDescriptorType

MOST = 2000
"""Maximum number of attributes of one object that are examined."""


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
    for name, place in [item for base in type(value).__mro__ for item in list(vars(base).items())]:
        is_slot = type(place) is MemberDescriptorType
        if is_slot or (name == "__dict__" and type(place) is GetSetDescriptorType):
            try:
                held = place.__get__(value)
            except AttributeError:
                continue  # an empty slot
            if is_slot:
                found.append((name, held))
            elif held is not None:
                found += itertools.islice(dict.items(held), MOST)
    return found


# object, here and above: values of any type.
def held_by(value: object) -> list[object]:
    """Return the values that an object holds, and perhaps others that it refers to, without names.

    Its attributes stay as fast to access as they were. The entries of dictionaries are included: one of them may be the
    object's own.
    """
    found: list[object] = []
    for part in gc.get_referents(value)[:MOST]:
        found.append(part)
        if issubclass(type(part), dict):
            found += itertools.islice(dict.values(part), MOST)
    return found
