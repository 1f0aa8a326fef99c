"""The same program with torch's loader and with feedline's: libraries build their loaders on either.

A program calls `use_base(sys.argv[1])` before it imports the library, and prints a dict as JSON. Its values come from
`report_of`, or are anything else that has to be the same on both sides.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch.utils.data
import torch.utils.data.dataloader

import feedline
from tests.frameworks_real.deliveries import count_deliveries, delivered
from tests.frameworks_real.ranks import run_ranks


def use_base(name: str) -> Any:
    """Replace torch's `DataLoader` for libraries, count deliveries by iterator class, and return the class."""
    kind: Any = {"torch": torch.utils.data.DataLoader, "feedline": feedline.DataLoader}[name]
    modules: list[Any] = [torch.utils.data, torch.utils.data.dataloader]
    for module in modules:
        module.DataLoader = kind
    count_deliveries()
    return kind


def without(*packages: str) -> None:
    """Replace packages that a library imports but the program does not need by empty modules.

    torchaudio and torchvision load only with the build of torch that they were compiled for.
    """
    for package in packages:
        try:
            importlib.import_module(package)
        except (ImportError, OSError, RuntimeError):
            module = sys.modules[package] = _Empty(package)
            module.__spec__ = importlib.machinery.ModuleSpec(package, None)


class _Empty(types.ModuleType):
    """A module in which every name is a class."""

    __version__ = "none"
    __path__: list[str] = []  # noqa: RUF012

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def report_of(loader: Any, show: Callable[[Any], Any], epochs: int = 2) -> dict[str, Any]:
    """Iterate over a loader; report its batches, and the classes of the iterators that delivered them."""
    delivered.clear()
    seen = [[show(batch) for batch in loader] for _ in range(epochs)]
    return {"epochs": seen, "length": len(loader), "iterators": dict(delivered)}


def flat(batches: list[list[Any]]) -> list[Any]:
    """Return the samples of all batches."""
    return [sample for batch in batches for sample in batch]


def assert_same(
    program: str, folder: Path, *, other_iterators: tuple[str, ...] = (), at_once: bool = True
) -> dict[str, Any]:
    """Run a program of this folder on both sides, compare, and return its report with feedline.

    Args:
        program: name of the file.
        folder: where output goes.
        other_iterators: classes that deliver besides feedline's.
        at_once: False if the two sides would disturb each other.
    """
    with ThreadPoolExecutor(2 if at_once else 1) as pool:
        by_torch, by_feedline = pool.map(lambda base: _run(program, base, folder), ("torch", "feedline"))
    for name, answer in by_feedline.items():
        expected = by_torch.pop(name)
        if isinstance(answer, dict) and "iterators" in answer:
            iterators, counts = answer.pop("iterators"), expected.pop("iterators")
            assert sum(iterators.values()) == sum(counts.values()), name
            assert set(iterators) <= {"TorchBatches", *other_iterators}, name
        assert answer == expected, name
    assert not by_torch
    return by_feedline


def _run(program: str, base: str, folder: Path) -> dict[str, Any]:
    own = folder / base
    own.mkdir()
    (answers,) = run_ranks(Path(__file__).with_name(program), 1, base, folder=own)
    return dict(answers)
