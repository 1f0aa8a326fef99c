"""Memory of the object store: how much batches take."""

from __future__ import annotations

import numpy as np

from feedline.memory.codec import Bytes
from feedline.workers.ray.store import Store

SIZE = 1 << 20


def read_only_array() -> Bytes:
    array = np.full(SIZE, 7, np.uint8)
    array.flags.writeable = False
    return array


def test_a_batch_counts_until_it_is_delivered_and_may_be_changed() -> None:
    store = Store(3 * SIZE)
    reader = store.open(read_only_array())
    assert store.held == SIZE
    assert store.capacity(before_known=1) == 2
    array = reader.array(0, (SIZE,), np.dtype(np.uint8))
    del reader
    assert store.held == 0
    array += 1
    assert (array == 8).all()
