"""Lengths of documents."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from feedline.errors import CollateError
from feedline.text.packing import document_lengths


def test_lengths_of_arrays_lists_tensors_and_mappings() -> None:
    documents = [[1, 2], np.arange(3), torch.arange(4), {"tokens": [1], "loss_mask": [True]}, []]
    lengths = document_lengths(documents)  # type: ignore[arg-type]  # tensors are not declared, but work
    assert lengths.tolist() == [2, 3, 4, 1, 0]
    assert lengths.dtype == np.int64
    assert document_lengths([]).tolist() == []


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"tokens": [1, 2], "loss_mask": [True]}, "Document 1 cannot be packed: 'tokens' has 2, 'loss_mask' has 1"),
        ({}, "it has no fields"),
    ],
)
def test_fields_of_different_lengths_are_rejected(document: dict[str, list[int]], message: str) -> None:
    with pytest.raises(CollateError, match=message):
        document_lengths([[1], document])
