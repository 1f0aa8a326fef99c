"""Weak references without code of their own.

The weak collections of the standard library run Python code when an object they refer to dies. If a signal handler
raises an exception in that code, Python prints and drops it: Ctrl-C is lost. Plain references run nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class References(Generic[T]):
    """Weak references to objects: iterates over those that are alive, in the order in which they were added.

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
        self._references: list[weakref.ref[T]] = []

    def add(self, added: T) -> None:
        """Add an object, and forget those that are gone."""
        kept = []
        for reference in self._references:
            if (other := reference()) is not None and other is not added:
                kept.append(reference)
        self._references = [*kept, weakref.ref(added)]

    def clear(self) -> None:
        """Forget all objects."""
        self._references = []

    def __iter__(self) -> Iterator[T]:
        alive: list[T] = []
        # Without a lock, with or without the GIL: `add` replaces the list, so it does not change meanwhile.
        for reference in self._references:
            if (one := reference()) is not None:
                alive.append(one)
        return iter(alive)
