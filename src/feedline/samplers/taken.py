"""Indices by value: a sampler may reuse the object that it yielded while the loader still needs it."""

from __future__ import annotations

import copy
import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from feedline.types import IndexBlock

_VALUES = frozenset(
    {int, str, bytes, bool, float, complex, type(None), range, IndexBlock}
    | {kind for kind in np.sctypeDict.values() if kind not in (np.void, np.object_)}
)
"""Types that do not change after being yielded; feedline's own plans make a new `IndexBlock` every time."""


# Any, here and below: anything a sampler yields.
def taken(index: Any) -> object:
    """Return a snapshot of what a sampler yielded: lists, dicts, sets, arrays and tensors are copied, recursively.

    A hashable object stays the same object, since a dataset may look it up; so does one that cannot be copied.

    Example:
        >>> batch = [1, [2, 3]]
        >>> kept = taken(batch)
        >>> batch[1][0] = 9
        >>> kept
        [1, [2, 3]]
    """
    kind = type(index)
    if kind in _VALUES:
        return index
    if kind is list:
        return index.copy() if _VALUES.issuperset(map(type, index)) else taken_each(index)
    if isinstance(index, tuple):
        if _VALUES.issuperset(map(type, index)):
            return index
        elements = taken_each(index)
        if all(map(operator.is_, elements, index)):
            return index
        return tuple(elements) if kind is tuple else _copied(index)
    if kind is dict:
        return {key: taken(value) for key, value in index.items()}
    if kind is np.ndarray and not index.dtype.hasobject:
        return index.copy()
    if hasattr(kind, "clone") and hasattr(kind, "ndim"):  # a tensor, which is hashable by its id
        return index.clone()
    hashing: object = kind.__hash__  # typed as a method, it could not be None
    return _copied(index) if hashing is None else index


def taken_each(indices: Iterable[object]) -> list[Any]:
    """Return a list of what a sampler yields, each item copied by `taken` at that moment."""
    return [index if type(index) in _VALUES else taken(index) for index in indices]


def _copied(index: object) -> object:
    try:
        return copy.deepcopy(index)
    except Exception:  # the user's class: an object that cannot be copied is still usable unless it changes
        return index
