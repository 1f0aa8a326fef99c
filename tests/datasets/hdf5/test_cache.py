"""Unpacked chunks, up to a number of bytes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.hdf5.cache import ChunkCache


@given(
    limit=st.integers(0, 60),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 6), st.integers(1, 30)), max_size=60),
)
def test_it_never_holds_more_and_forgets_the_oldest(limit: int, steps: list[tuple[bool, int, int]]) -> None:
    cache = ChunkCache(limit)
    model: list[tuple[int, int]] = []  # key and size, the one used last at the end
    for is_put, key, size in steps:
        known = next((one for one in model if one[0] == key), None)
        if is_put:
            cache.put(key, np.zeros(1, f"V{size}"))
            if known is None and size <= limit:
                model.append((key, size))
                while sum(held for _, held in model) > limit:
                    model.pop(0)
        else:
            found = cache.get(key)
            assert (found is None) == (known is None)
            if found is not None and known is not None:
                assert found.nbytes == known[1]
                model.remove(known)
                model.append(known)
