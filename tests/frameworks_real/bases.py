"""The same program with torch's loader and with feedline's: libraries build their loaders on the one or on the other.

A program calls `use_base(sys.argv[1])` before it imports the library, and prints a dict as JSON. What is in it comes
from `told`, or is anything else that has to be the same on both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.utils.data
import torch.utils.data.dataloader

import feedline
from tests.frameworks_real.deliveries import count_deliveries, delivered
from tests.frameworks_real.ranks import run_ranks


def use_base(name: str) -> Any:
    """Put a class in the place where libraries look for `DataLoader`, count who delivers, and return the class."""
    kind: Any = {"torch": torch.utils.data.DataLoader, "feedline": feedline.DataLoader}[name]
    for module in (torch.utils.data, torch.utils.data.dataloader):
        module.DataLoader = kind  # type: ignore[misc]
    count_deliveries()
    return kind


def told(loader: Any, show: Callable[[Any], Any], epochs: int = 2) -> dict[str, Any]:
    """Go through a loader and tell which batches came, and from which classes of iterators."""
    delivered.clear()
    seen = [[show(batch) for batch in loader] for _ in range(epochs)]
    return {"epochs": seen, "length": len(loader), "iterators": dict(delivered)}


def assert_same(program: str, folder: Path, *, other_iterators: tuple[str, ...] = ()) -> dict[str, Any]:
    """Run a program of this folder on both sides, compare, and return what it told with feedline.

    Args:
        program: name of the file.
        folder: where output goes.
        other_iterators: classes that deliver besides feedline's.
    """
    script = Path(__file__).with_name(program)
    (by_torch,), (by_feedline,) = (run_ranks(script, 1, name, folder=folder) for name in ("torch", "feedline"))
    for name, answer in by_feedline.items():
        expected = by_torch.pop(name)
        if isinstance(answer, dict) and "iterators" in answer:
            iterators, counts = answer.pop("iterators"), expected.pop("iterators")
            assert sum(iterators.values()) == sum(counts.values()), name
            assert set(iterators) <= {"TorchBatches", *other_iterators}, name
        assert answer == expected, name
    assert not by_torch
    return dict(by_feedline)
