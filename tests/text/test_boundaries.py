"""Sequence lengths of batches; segments and positions are compared in test_token_dataset.py."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.text import cu_seqlens


@given(
    ids=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4),
    is_tensor=st.booleans(),
)
def test_sequence_lengths(ids: list[list[bool]], is_tensor: bool) -> None:
    segments = np.cumsum(np.array(ids, np.int32), axis=1)
    expected = [0]
    for row in segments.tolist():
        for value in sorted(set(row)):
            expected.append(expected[-1] + row.count(value))
    found = cu_seqlens(torch.from_numpy(segments) if is_tensor else segments)
    assert isinstance(found, torch.Tensor if is_tensor else np.ndarray)
    assert str(found.dtype).endswith("int32")
    assert found.tolist() == expected
    assert cu_seqlens(segments[0]).tolist() == [one for one in expected if one <= 5]


def test_sequence_lengths_of_something_else() -> None:
    with pytest.raises(BadOption, match="shape"):
        cu_seqlens(np.zeros((2, 2, 2)))
    with pytest.raises(BadOption, match="shape"):
        cu_seqlens(3)
