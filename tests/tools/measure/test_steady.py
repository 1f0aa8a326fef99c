from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from feedline.tools.measure.harness import LoaderLike
from feedline.tools.measure.steady import Span, Steady, touch


def opened(length: int = 50) -> LoaderLike:
    loader: LoaderLike = DataLoader(TensorDataset(torch.arange(length)), batch_size=1)
    return loader


def test_only_batches_between_the_margins_are_counted() -> None:
    figures = Steady(opened, touch, 1, Span(0.0, batches=10, warmup=4)).measure()
    assert figures["batches"] == 10
    assert figures["first_batch"] == 5
    assert all((figures[name] or 0) > 0 for name in ("first_batch_ms", "samples_per_s", "consumer_cpu_us"))


def test_the_margin_covers_prefetched_batches() -> None:
    assert Span(1.0, warmup=8).margin(0) == 8
    assert Span(1.0, warmup=8).margin(4) == 16
    assert Span(1.0, warmup=8).margin(4, prefetch=8) == 64
    assert Span(1.0, warmup=8, is_ahead=False).margin(4, prefetch=8) == 4


def test_rejects_epochs_that_are_too_short() -> None:
    with pytest.raises(ValueError, match="an epoch of 9 batches leaves nothing to count"):
        Steady(lambda: opened(9), touch, 1, Span(0.0, warmup=4)).measure()
