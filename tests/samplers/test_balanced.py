"""Every class equally often."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from feedline.samplers import BalancedSampler
from tests.samplers.chi_square import assert_fits

torch = pytest.importorskip("torch")

CLASSES = [0] * 700 + [5] * 20 + [-3] * 3


@pytest.mark.parametrize(
    "labels",
    [
        CLASSES,
        np.array(CLASSES),
        torch.tensor(CLASSES),
        [str(label) for label in CLASSES],
        [torch.tensor(label) for label in CLASSES],
    ],
    ids=["list", "array", "tensor", "strings", "tensors"],
)
def test_classes_are_equally_likely_and_so_are_their_samples(labels: Any) -> None:
    sampler = BalancedSampler(labels, 21_000, seed=1)
    drawn = np.array(list(sampler))
    assert_fits(np.bincount(np.searchsorted([700, 720], drawn, side="right"), minlength=3))
    assert_fits(np.bincount(drawn[drawn < 700], minlength=700))
    assert_fits(np.bincount(drawn[drawn >= 720] - 720, minlength=3))
    assert "3 classes" in repr(sampler)


def test_as_many_as_labels_by_default() -> None:
    assert len(list(BalancedSampler(CLASSES))) == len(CLASSES)


@pytest.mark.parametrize(("labels", "match"), [([], "empty"), ([[1], [2]], "shape")])
def test_what_is_no_list_of_classes_is_refused(labels: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        BalancedSampler(labels)
