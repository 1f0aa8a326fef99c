"""Traversal of batches of any structure, leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


# Any, throughout: batches of any structure.
def mapped(batch: Any, leaves: tuple[type, ...], function: Callable[[Any], object], method: str = "") -> object:
    """Return a batch of the same structure with `function` applied to its leaves; other values stay.

    Args:
        batch: lists, tuples, named tuples, mappings and their contents, at any depth.
        leaves: the types of leaves.
        function: returns the new value of a leaf.
        method: values that have a method of this name are leaves, too.

    Example:
        >>> mapped({"x": [1, "a"], "y": (2.0, None)}, (int, float), lambda value: value * 10)
        {'x': [10, 'a'], 'y': (20.0, None)}
    """
    kind = type(batch)
    if isinstance(batch, leaves):
        return function(batch)
    if batch is None or isinstance(batch, (str, bytes, int, float)):
        return batch
    if kind is list or kind is tuple:
        return kind([mapped(value, leaves, function, method) for value in batch])
    if kind is dict:
        return {key: mapped(value, leaves, function, method) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return kind(*(mapped(value, leaves, function, method) for value in batch))
    if method and callable(getattr(batch, method, None)):
        return function(batch)
    if isinstance(batch, Mapping):
        return _like(batch, {key: mapped(value, leaves, function, method) for key, value in batch.items()})
    if isinstance(batch, (list, tuple)):
        return _like(batch, [mapped(value, leaves, function, method) for value in batch])
    return batch


def _like(batch: Any, content: object) -> object:
    """Return a container of the same class, as torch's pin_memory does; a plain list or dict if that fails."""
    try:
        return type(batch)(content)
    except TypeError:
        return content
