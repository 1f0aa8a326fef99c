"""What a batch consists of, whatever form the sampler gave it: a block, a list, an array, or one index.

Whether it is a batch or one index cannot be seen: an index may be a tuple, too. So it has to be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from feedline.types import IndexBlock

# Any, throughout: whatever the sampler yields.


def as_list(indices: Any, *, batched: bool = True) -> list[Any]:
    """Return the samples one by one; what is no batch after all counts as one index."""
    if type(indices) is IndexBlock:
        numbers: list[int] = indices.array.tolist()
        return numbers
    if not batched:
        return [indices]
    try:
        return list(indices)
    except TypeError:
        return [indices]


def reusable(indices: Any) -> Any:
    """Return a batch that can be gone through more than once: an iterator becomes a list."""
    if type(indices) is IndexBlock:  # which is quicker to see
        return indices
    return list(indices) if isinstance(indices, Iterator) else indices


def count_of(indices: Any, *, batched: bool = True) -> int:
    """Return how many samples there are."""
    if not batched:
        return 1
    try:
        return len(indices)
    except TypeError:
        return len(as_list(indices))


def rows_of(indices: Any, start: int, stop: int) -> Any:
    """Return some of the samples of a batch."""
    if type(indices) is IndexBlock:
        return IndexBlock(indices.array[start:stop])
    return indices[start:stop] if isinstance(indices, (list, tuple)) else as_list(indices)[start:stop]


def with_item(indices: Any, place: int, item: Any, *, batched: bool = True) -> Any:
    """Return the samples with another one at a place."""
    if not batched:
        return item
    if type(indices) is IndexBlock and isinstance(item, int):
        array = indices.array.copy()
        array[place] = item
        return IndexBlock(array)
    items = as_list(indices)
    items[place] = item
    return items
