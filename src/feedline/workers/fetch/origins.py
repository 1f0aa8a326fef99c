"""Find which sample of a batch failed, and where it comes from.

Datasets wrap other datasets, and the failing sample belongs to the innermost one, where it has another index. Several
samples may be requested at once, and then the exception does not say which of them failed.
"""

from __future__ import annotations

import bisect
import sys
import time
from collections.abc import Iterator
from typing import Any

from feedline.abc.selection import Derived
from feedline.errors import CorruptSource

_PATIENCE_S = 2.0
"""How long to try samples one by one. A guess: the exception is delayed by this time."""
_ANSWERED = (CorruptSource, FileNotFoundError, IsADirectoryError, PermissionError)
"""Errors of a disk or a network that has answered."""

_MOST_LAYERS = 16
"""How many nested datasets are followed: a bound in case of a cycle."""


# Any, throughout: a dataset is any object, and an index any that it understands.
def origin_text(dataset: Any, index: object) -> str:
    """Return text that adds a sample's origin to its name; empty if the dataset wraps no other."""
    path, inner = "", dataset
    for below, index_below in _layers(dataset, index):
        if getattr(inner, "dataset", None) is below:
            path += ".dataset"
        else:
            path += f".datasets[{next(number for number, part in enumerate(inner.datasets) if part is below)}]"
        inner, index = below, index_below
    return f", which is sample {index!r} of the {type(inner).__name__} in loader.dataset{path}" if path else ""


def _layers(dataset: object, index: object) -> Iterator[tuple[object, object]]:
    """Yield a sample's dataset and index inside the wrappers, layer by layer."""
    for _ in range(_MOST_LAYERS):
        try:
            found = _origin(dataset, index)
        except Exception:  # there is no such sample: the original exception is about that
            return
        if found is None:
            return
        dataset, index = found
        yield found


def _origin(dataset: object, index: Any) -> tuple[object, object] | None:
    if isinstance(dataset, Derived):
        return dataset.origin(index)
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(dataset, torch_data.Subset):
        return dataset.dataset, dataset.indices[index]
    if torch_data is not None and isinstance(dataset, torch_data.ConcatDataset):
        place = index + len(dataset) if index < 0 else index
        number = bisect.bisect_right(dataset.cumulative_sizes, place)
        return dataset.datasets[number], place - (dataset.cumulative_sizes[number - 1] if number else 0)
    return None


def place_of_failed(exc: BaseException, dataset: Any, indices: list[object]) -> int | None:
    """Return which of the samples requested together an exception is about; None if that is not known.

    Requests them one by one, up to the first that fails in the same way.
    """
    if isinstance(exc, (MemoryError, OSError)) and not isinstance(exc, _ANSWERED):
        return None  # with a network or a disk, another attempt may take very long
    if not isinstance(exc, Exception):
        return None
    until = time.monotonic() + _PATIENCE_S
    for place, index in enumerate(indices):
        if time.monotonic() > until:
            return None
        try:
            dataset.__getitems__([index])
        except Exception as again:
            return place if type(again) is type(exc) else None
    return None
