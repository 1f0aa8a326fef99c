"""The indices of a batch in any form that a sampler may yield: a block, a list, an array, or one index.

The form does not show whether it is a batch or one index, as an index may be a tuple. So callers pass `batched`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feedline.types import IndexBlock

# Any, throughout: the sampler may yield any type.


def as_list(indices: Any, *, batched: bool = True) -> list[Any]:
    """Return the samples as a list; an object that is not iterable counts as one index."""
    if type(indices) is IndexBlock:
        numbers: list[object] = indices.array.tolist()
        return numbers
    if not batched:
        return [indices]
    try:
        return list(indices)
    except TypeError:
        return [indices]


def reusable(indices: object) -> object:
    """Return a batch that can be iterated more than once: an iterator becomes a list."""
    if type(indices) is IndexBlock:  # checked first because it is quicker
        return indices
    return list(indices) if isinstance(indices, Iterator) else indices


def count_of(indices: Any, *, batched: bool = True) -> int:
    """Return the number of samples."""
    if type(indices) is IndexBlock:  # checked first because it is quicker
        return len(indices.array)
    if not batched:
        return 1
    try:
        return len(indices)
    except TypeError:
        return len(as_list(indices))


def with_item(indices: object, place: int, item: object, *, batched: bool = True) -> object:
    """Return the samples with the one at `place` replaced."""
    if not batched:
        return item
    if type(indices) is IndexBlock and isinstance(item, int):
        array = indices.array.copy()
        array[place] = item
        return IndexBlock(array)
    items = as_list(indices)
    items[place] = item
    return items
