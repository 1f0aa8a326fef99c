"""Checksums follow the contents of a batch, and reports of peers are compared in a fixed order."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from feedline.mesh.digest import Report, difference, fields_of


class Pair(NamedTuple):
    left: Any  # Any: arrays of any library
    right: Any


BATCHES: list[tuple[Any, Any]] = [
    (torch.arange(4), torch.tensor([0, 1, 2, 4])),
    (torch.zeros(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16)),
    (torch.zeros(4), torch.zeros(2, 2)),
    (torch.tensor(1), torch.tensor(2)),
    (np.zeros(2), np.zeros(2, np.float32)),
    (np.array(["a", "b"]), np.array(["a", "c"])),
    (np.array([1, "b"], dtype=object), np.array([1, "c"], dtype=object)),
    ({"x": [1, 2]}, {"x": [1, 3]}),
    (Pair([1], [2, 3]), Pair([1, 2], [3])),
    (["a", b"b", None], ["a", b"c", None]),
]


@pytest.mark.parametrize(("batch", "other"), BATCHES)
def test_different_batches_have_different_checksums(batch: Any, other: Any) -> None:
    assert fields_of(batch) == fields_of(batch)
    assert fields_of(batch) != fields_of(other)


def test_objects_count_by_their_class() -> None:
    assert fields_of([object()]) == fields_of([object()])
    assert fields_of(torch.arange(6).reshape(2, 3).T) == fields_of(torch.arange(6).reshape(2, 3).T.contiguous())
    assert fields_of({"empty": np.zeros((0, 3)), "sparse": torch.eye(2).to_sparse()})


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (Report(0, 2, fields={"x": 1, "y": 2}), None),
        (Report(0, 2, fields={"y": 2}), None),
        (Report(0, 2, fields={"x": 1, "y": 3}), "'y'"),
        (Report(0, 2, fields={"z": 0}, lost_count=0), None),
        (Report(0, 3, fields={"x": 1, "y": 2}), "step 3"),
        (Report(1, 2, fields={"x": 1, "y": 2}), "epoch 1"),
        (Report(0, 2, ended=True), "ended"),
        (Report(0, 2, fields={"x": 1, "y": 2}, lost=("17",), lost_count=1), "1 samples: 17"),
    ],
)
def test_the_first_difference_is_named(other: Report, says: str | None) -> None:
    own = Report(0, 2, fields={"x": 1, "y": 2}, lost_count=0)
    found = difference({0: Report(0, 2), 1: Report(0, 2, fields={"x": 1}), 3: own, 5: other})
    if says is None:
        assert found is None
    else:
        assert found is not None
        assert says in found
        assert "5" in found
