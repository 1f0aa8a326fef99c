"""Draws by weight, with and without replacement."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.samplers import BalancedSampler, WeightedRandomSampler
from feedline.types import Key
from tests.samplers.chi_square import assert_fits

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("convert", [list, np.array, torch.tensor, lambda w: np.array(w, np.float32)])
def test_with_replacement_follows_the_weights(convert: Any) -> None:
    weights = np.array([0.5, 0.0, 2.0, 1.0, 8.0])
    counts = np.bincount(list(WeightedRandomSampler(convert(weights.tolist()), 20_000, seed=1)), minlength=5)
    assert counts[1] == 0
    kept = weights > 0
    assert_fits(counts[kept], weights[kept] / weights.sum() * 20_000)


@pytest.mark.slow
@pytest.mark.parametrize(("weights", "count"), [([1.0, 2.0, 4.0, 0.0, 0.5], 4), ([1.0, 1.0, 3.0, 9.0], 2)])
def test_drawing_without_replacement_is_successive(weights: list[float], count: int) -> None:
    sampler = WeightedRandomSampler(weights, count, False)
    keys = [Key(7, epoch) for epoch in range(8000)]
    found = Counter(tuple(sampler.at(np.arange(count), key).tolist()) for key in keys)
    orders = list(permutations([index for index, weight in enumerate(weights) if weight], count))
    assert set(found) <= set(orders)
    assert_fits([found[order] for order in orders], [successive(weights, order) * len(keys) for order in orders])


def successive(weights: list[float], order: tuple[int, ...]) -> float:
    chance, left = 1.0, sum(weights)
    for index in order:
        chance *= weights[index] / left
        left -= weights[index]
    return chance


@given(st.lists(st.floats(0, 1e300), min_size=1).filter(any), st.data())
def test_drawing_without_replacement_repeats_nothing_and_skips_zeros(weights: list[float], data: st.DataObject) -> None:
    positive = sum(weight > 0 for weight in weights)
    sampler = WeightedRandomSampler(weights, data.draw(st.integers(1, positive)), replacement=False)
    drawn = list(sampler)
    assert len(set(drawn)) == len(drawn) == len(sampler)
    assert all(weights[index] > 0 for index in drawn)


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        ([1, -2, 3], r"weights\[1\]=-2"),
        ([1, 2, float("nan"), float("inf")], r"weights\[2\]=nan.*1 more"),
        ([float("inf")], r"weights\[0\]=inf"),
        ([0.0, 0.0], "All 2 weights are zero"),
        ([], "empty"),
        ([[1.0]], "shape"),
    ],
)
def test_rejects_invalid_weights(weights: list[Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        WeightedRandomSampler(weights, 1)


@pytest.mark.parametrize(
    ("num_samples", "replacement"), [(0, True), (-3, True), (True, True), (2.0, True), ("2", True), (2, 1), (2, None)]
)
def test_rejects_what_torch_rejects(num_samples: Any, replacement: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as theirs:
        torch.utils.data.WeightedRandomSampler([1.0, 2.0], num_samples, replacement)
    with pytest.raises(theirs.type):
        WeightedRandomSampler([1.0, 2.0], num_samples, replacement)


CLASSES = [0] * 700 + [5] * 20 + [-3] * 3


@pytest.mark.parametrize("labels", [CLASSES, [torch.tensor(label) for label in CLASSES]], ids=["list", "tensors"])
def test_classes_and_samples_within_a_class_are_equally_likely(labels: Any) -> None:
    sampler = BalancedSampler(labels, 21_000, seed=1)
    drawn = np.array(list(sampler))
    assert_fits(np.bincount(np.searchsorted([700, 720], drawn, side="right"), minlength=3))
    assert_fits(np.bincount(drawn[drawn < 700], minlength=700))
    assert_fits(np.bincount(drawn[drawn >= 720] - 720, minlength=3))
    assert "3 classes" in repr(sampler)
