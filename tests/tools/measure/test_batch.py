from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from feedline.system.timing import Clock
from feedline.tools.measure.batch import try_batch
from feedline.tools.measure.measured import Batch


def try_samples(samples: list[Any], collate: Any = None) -> Batch | None:
    return try_batch(samples, collate, Clock())


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_are_sent_without_pickling(kind: str) -> None:
    rows = [np.full(10_000, number / 3) for number in range(8)]
    batch = try_samples([torch.from_numpy(row) for row in rows] if kind == "torch" else rows)
    assert batch is not None
    assert batch.size == 8
    assert 640_000 <= batch.bytes < 650_000
    assert batch.object_bytes == 0
    assert batch.objects == ""
    assert not batch.is_custom


def test_fields_with_objects_are_named() -> None:
    batch = try_samples([{"x": np.zeros(4), "words": [f"word {number}" for number in range(100)]}] * 8, list)
    assert batch is not None
    assert batch.is_custom
    assert batch.objects.endswith("words (list)")


def test_samples_of_different_lengths_are_padded() -> None:
    batch = try_samples([np.zeros(number) for number in range(1, 9)])
    assert batch is not None
    assert "pad" in batch.collate.lower()


def test_batches_that_cannot_be_collated_or_pickled() -> None:
    assert try_samples([np.zeros(2), "text"], np.stack) is None
    batch = try_samples([1, 2], lambda samples: (number for number in samples))
    assert batch is not None
    assert "generator" in str(batch.not_picklable)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (lambda pixels: pixels.astype(np.float32), False),
        (lambda pixels: (pixels / 255).astype(np.float32), True),
        (lambda pixels: (pixels / 255 - 0.45) / 0.22, None),
        (lambda pixels: (pixels > 100).astype(np.float32), None),
        (lambda pixels: pixels * np.nan, None),
    ],
)
def test_floats_that_would_fit_into_bytes(values: Any, found: bool | None) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 64, 64), np.uint8)
    batch = try_samples([{"image": values(one)} for one in pixels])
    assert batch is not None
    assert [field.is_scaled for field in batch.floats] == [] if found is None else [found]
    assert all(field.name == "image" for field in batch.floats)


def by_hand(samples: list[Any]) -> Any:
    """Do what the default does, value by value."""
    return {"x": torch.tensor([[float(value) for value in sample["x"]] for sample in samples], dtype=torch.float64)}


def doubled(samples: list[Any]) -> Any:
    return {"x": torch.stack([torch.from_numpy(sample["x"]) for sample in samples]) * 2}


def as_pair(samples: list[Any]) -> Any:
    return np.array([list(sample["x"]) for sample in samples], np.float32), np.stack([one["y"] for one in samples])


@pytest.mark.parametrize(
    ("collate", "code"),
    [
        (by_hand, ""),
        (doubled, None),
        (
            as_pair,
            'def collate(samples):\n    return (np.stack([sample["x"] for sample in samples]).astype(np.float32), '
            'np.stack([sample["y"] for sample in samples]),)',
        ),
    ],
)
def test_another_collate_function_for_the_same_batch_is_found(collate: Any, code: str | None) -> None:
    dice = np.random.default_rng(0)
    samples = [{"x": dice.random(5), "y": dice.random(2)} for _ in range(4)]
    if collate is by_hand:
        samples = [{"x": sample["x"]} for sample in samples]
    batch = try_samples(samples, collate)
    assert batch is not None
    assert (None if batch.other is None else batch.other.code) == code
    if code:
        names = {"np": np}
        exec(code, names)
        for one, other in zip(names["collate"](samples), collate(samples), strict=True):  # type: ignore[operator]
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("values", "collate", "kind"),
    [([1.5] * 100, None, "numbers"), (["a"] * 100, None, "texts"), ([None] * 100, list, "")],
)
def test_kinds_of_objects_are_recognised(values: Any, collate: Any, kind: str) -> None:
    batch = try_samples([{"values": values}] * 4, collate)
    assert batch is not None
    assert batch.objects
    assert batch.object_kind == kind
