"""Which iterator classes deliver batches in this process, torch's and feedline's alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from feedline.loader.torch_batches import TorchBatches

delivered: Counter[str] = Counter()
"""Batches by the name of the class of the iterator."""


def count_deliveries() -> None:
    """Start counting."""
    kinds: list[Any] = [TorchBatches, _BaseDataLoaderIter]
    for kind in kinds:
        kind.__next__ = _counting(kind.__next__)


def _counting(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def __next__(self: Any) -> Any:  # noqa: N807
        batch = function(self)
        delivered[type(self).__name__] += 1
        return batch

    return __next__
