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
    assert (batch.size, batch.bytes, batch.object_bytes, batch.faster) == (8, 640_000, 0, None)


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
    ],
)
def test_floats_that_would_fit_into_bytes(values: Any, found: bool | None) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (4, 3, 64, 64), np.uint8)
    batch = try_samples([{"image": values(one)} for one in pixels])
    assert batch is not None
    assert all(field.convert_s > 0 for field in batch.floats)
    assert [field.is_scaled for field in batch.floats] == [] if found is None else [found]
    assert all(field.name == "image" for field in batch.floats)


def by_hand(samples: list[Any]) -> Any:
    """Do what the default does, value by value."""
    return {"x": torch.tensor([[float(value) for value in sample["x"]] for sample in samples], dtype=torch.float64)}


def doubled(samples: list[Any]) -> Any:
    return {"x": torch.stack([torch.from_numpy(sample["x"]) for sample in samples]) * 2}


FIELDS = {f"column {number}": 1.5 for number in range(16)}
ROW = {"x": np.arange(5) / 3}


@pytest.mark.parametrize(
    ("sample", "collate", "fix", "is_timed"),
    [
        (ROW, None, "", False),
        (ROW, by_hand, "Leave out collate_fn", True),
        (ROW, doubled, "Stack arrays in one call", False),
        ({"values": [1.5] * 100}, None, "Return an array", True),
        ({"x": np.zeros(4), "values": ["a"] * 100}, None, "Join the texts", True),
        (FIELDS, None, "Return fewer and larger fields", False),
    ],
)
def test_what_takes_the_time_of_a_batch_and_what_saves_it(sample: Any, collate: Any, fix: str, is_timed: bool) -> None:
    batch = try_samples([sample] * 4, collate)
    assert batch is not None
    assert (batch.faster is None) == (not fix)
    if batch.faster is not None:
        assert batch.faster.fix.startswith(fix)
        assert (batch.faster.carry_s is not None) == (batch.faster.code is not None) == is_timed
