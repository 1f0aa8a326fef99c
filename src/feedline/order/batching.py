"""From blocks of indices to batches of indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from feedline.types import IndexBlock

IndexArray = NDArray[np.int64]


def batches_of(blocks: Iterable[IndexArray], batch_size: int, *, drop_last: bool) -> Iterator[IndexBlock]:
    """Cut a stream of index blocks into batches.

    A block is asked for only when the batch at hand cannot be filled without it, as if the indices came one by one.

    Example:
        >>> import numpy as np
        >>> [b.array.tolist() for b in batches_of([np.arange(3), np.arange(3, 5)], 2, drop_last=False)]
        [[0, 1], [2, 3], [4]]
    """
    rest = np.empty(0, np.int64)
    for block in blocks:
        if len(rest):
            block = np.concatenate([rest, block])
        whole = len(block) // batch_size * batch_size
        for start in range(0, whole, batch_size):
            yield IndexBlock(block[start : start + batch_size])
        rest = block[whole:]
    if len(rest) and not drop_last:
        yield IndexBlock(rest)
