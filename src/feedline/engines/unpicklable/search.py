"""The search for the smallest object that cannot be pickled.

An object that fails is replaced by the first of its parts that fails by itself, again and again. Long containers are
halved until the item is found, so that each step costs about as much as pickling once. Objects on the way from the root
count as picklable, so that a part which refers back to its owner is not blamed for what is wrong elsewhere in the
owner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from feedline.abc.framework import Framework
from feedline.engines.unpicklable.known import known
from feedline.engines.unpicklable.parts import parts_of
from feedline.engines.unpicklable.trial import Reducers, Trial

_FEW = 8
"""Items that are tried one by one; more are halved first. A guess, not measured."""

_MANY = 10
"""Objects of one type inside each other that make a deep structure; a few may just wrap each other."""


@dataclass(frozen=True)
class Culprit:
    """An object that fails although all its parts, if it has any, can be pickled."""

    path: str
    value: Any
    failure: Exception
    is_class_of: bool = False
    """True if `value` is the class of the object at `path`."""


class Search:
    """Goes down from an object that cannot be pickled to the smallest one inside."""

    def __init__(self, framework: Framework) -> None:
        self._reducers = Reducers(framework)
        self._way: dict[int, Any] = {}

    def among(self, roots: dict[str, Any]) -> Culprit | None:
        """Return what fails in the first root that does."""
        for name, root in roots.items():
            failure = self._failure(root)
            if failure is not None:
                return self._below(Culprit(name, root, failure))
        return None

    def _below(self, culprit: Culprit) -> Culprit:
        too_deep: dict[type, list[Culprit]] = {}
        while True:
            kind = type(culprit.value)
            if isinstance(culprit.failure, RecursionError):
                # Further down it is not too deep any more, so the end of this way says nothing: it is where the
                # structure begins that counts, with the first object of a type that comes again and again.
                alike = too_deep.setdefault(kind, [])
                alike.append(culprit)
                if len(alike) == _MANY:
                    return alike[0]
            if known(kind) is not None:
                return culprit
            self._way[id(culprit.value)] = culprit.value
            part = self._failing_part(culprit.path, culprit.value)
            if part is None:
                return culprit
            culprit = part

    def _failing_part(self, path: str, value: Any) -> Culprit | None:
        for parts in parts_of(path, value, self._reducers):
            found = self._first_failing(parts.items)
            if found is not None:
                place, failure = found
                return Culprit(parts.path_of(place), parts.items[place], failure, parts.are_classes)
        return None

    def _first_failing(self, items: list[Any]) -> tuple[int, Exception] | None:
        first, end = 0, len(items)
        if end > _FEW and self._failure(items) is None:
            return None
        while end - first > _FEW:
            middle = (first + end) // 2
            if self._failure(items[first:middle]) is None:
                first = middle
            else:
                end = middle
        for place in range(first, end):
            failure = self._failure(items[place])
            if failure is not None:
                return place, failure
        return None

    def _failure(self, value: Any) -> Exception | None:
        try:
            Trial(self._reducers, self._way).dump(value)
        except Exception as exc:  # whatever the user's __getstate__ raises
            return exc.with_traceback(None)
        return None
