"""Weak references without code of their own.

The weak collections of the standard library run Python code when an object they refer to dies. If a signal handler
raises an exception in that code, Python prints and drops it: Ctrl-C is lost. Plain references run nothing.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

_BETWEEN = 8
"""Objects are forgotten with every so many that are added: a loader adds one or two for every epoch."""


class References(Generic[T]):
    """Weak references to objects: iterates over those that are alive, in the order in which they were added.

    Every thread may call every method at any time, with or without the GIL, and so may a signal handler or the garbage
    collector in the middle of another call. There is no lock, which an interrupted call or a fork would leave taken:
    each step is one operation of a dict, and a reference is removed only under the number that it was added with.

    Example:
        >>> class Thing: ...
        >>> first, second = Thing(), Thing()
        >>> things = References()
        >>> for thing in (first, second, first):
        ...     things.add(thing)
        >>> del second, thing
        >>> list(things) == [first]
        True
    """

    def __init__(self) -> None:
        self._references: dict[int, weakref.ref[T]] = {}
        self._numbers = itertools.count()

    def add(self, added: T) -> None:
        """Add an object, and now and then forget those that are gone."""
        number = next(self._numbers)
        self._references[number] = weakref.ref(added)
        if number % _BETWEEN:
            return
        for earlier, reference in self._references.copy().items():
            other = reference()
            if other is None or (other is added and earlier < number):
                self._references.pop(earlier, None)

    def clear(self) -> None:
        """Forget all objects."""
        self._references.clear()

    def __iter__(self) -> Iterator[T]:
        found: dict[
            int, T
        ] = {}  # by identity: an object that was added again is there twice, and its last place counts
        for reference in reversed(self._references.copy().values()):
            one = reference()
            if one is not None:
                found.setdefault(id(one), one)
        return reversed(found.values())
