from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from feedline.system.timing import Clock
from feedline.tools.measure.batch import try_batch
from feedline.tools.measure.measured import Batch


def try_samples(samples: list[Any], collate: Any = None) -> Batch | None:
    return try_batch(samples, collate, Clock(), is_written=True)


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
    assert all(field.carry_s is not None for field in batch.floats)
    assert [field.is_scaled for field in batch.floats] == [] if found is None else [found]
    assert all(field.name == "image" for field in batch.floats)


def by_hand(samples: list[Any]) -> Any:
    """Do what the default does, value by value."""
    return {"x": torch.tensor([[float(value) for value in sample["x"]] for sample in samples], dtype=torch.float64)}


def doubled(samples: list[Any]) -> Any:
    return {"x": torch.stack([torch.from_numpy(sample["x"]) for sample in samples]) * 2}


@pytest.mark.parametrize(("collate", "is_same"), [(by_hand, True), (doubled, False)])
def test_a_function_that_does_what_the_default_does_is_found(collate: Any, is_same: bool) -> None:
    batch = try_samples([{"x": row} for row in np.random.default_rng(0).random((4, 5))], collate)
    assert batch is not None
    assert (batch.by_default_s is not None) == is_same


@pytest.mark.parametrize(
    ("values", "collate", "kind"),
    [([1.5] * 100, None, "numbers"), (["a"] * 100, None, "texts"), ([None] * 100, list, "")],
)
def test_kinds_of_objects_are_recognised(values: Any, collate: Any, kind: str) -> None:
    batch = try_samples([{"values": values}] * 4, collate)
    assert batch is not None
    assert batch.objects
    assert batch.object_kind == kind
    assert (batch.as_arrays_s is not None) == bool(kind)
