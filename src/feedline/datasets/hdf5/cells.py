"""Rows of numbers as cells: pieces of memory of one size, copied whatever is in them."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.bounded_cache import BoundedCache

Cells = NDArray[np.void]
"""One row each, one after the other or not."""

ChunkCache = BoundedCache[Hashable, Cells]
"""Chunks that were unpacked, kept while there is room."""

_LARGE = 2048
"""Bytes from which on a cell is copied by itself: what a call costs is then less than a copy in between."""


def cells_of(rows: NDArray[np.generic]) -> Cells:
    """Return the rows of a contiguous array, of one byte each at least, as cells of the same memory.

    Example:
        >>> cells_of(np.zeros((4, 2, 3), np.float32)).dtype, len(cells_of(np.zeros((4, 2, 3), np.float32)))
        (dtype('V24'), 4)
    """
    count = len(rows)
    size = rows.itemsize * int(np.prod(rows.shape[1:], dtype=np.int64))
    found: Cells = np.ndarray((count,), f"V{size}", rows)
    return found


def copy(source: Cells, numbers: NDArray[np.int64], cells: Cells, places: NDArray[np.int64] | None) -> None:
    """Copy some cells of `source` to places of `cells`; to all of them, in order, if `places` is None.

    NumPy lets go of the interpreter meanwhile: other threads run while memory is brought from a disk.
    """
    if cells.itemsize < _LARGE:
        if places is None:
            cells[:] = source[numbers]
        else:
            cells[places] = source[numbers]
        return
    goals = range(len(numbers)) if places is None else places.tolist()
    for goal, number in zip(goals, numbers.tolist(), strict=True):
        cells[goal : goal + 1] = source[number : number + 1]
