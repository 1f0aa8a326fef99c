"""The memory of a program is that of the batches it keeps, plus a window.

Memory is read as the system counts it: the summed PSS of this process and its workers, without mapped files.
"""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from feedline import DataLoader
from feedline.workers import abilities
from tests.mappings import mappings

BATCH = 4
IMAGE_BYTES = 1 << 20
CONSTANT = 64 << 20
"""The arena's own slack (16 MB), and the memory of Python, its heap and two workers."""


class Images(Dataset[Any]):
    """An image, a mask of half its size, a label."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        # Not with torch, whose own heap may not return freed memory.
        image, mask = (np.full(size // 4, index, np.float32) for size in (IMAGE_BYTES, IMAGE_BYTES // 2))
        return torch.from_numpy(image), torch.from_numpy(mask), index


def memory() -> int:
    """Return the memory of this process and its workers in bytes, without what they share with other test processes.

    A proportional share of that would change whenever one of those ends.
    """
    own, total = os.getpid(), 0
    for pid in (own, *map(int, Path(f"/proc/self/task/{own}/children").read_text().split())):
        for one in mappings(pid) if Path(f"/proc/{pid}/smaps").exists() else []:
            private = min(one.sizes["Anonymous"], one.sizes["Private_Clean"] + one.sizes["Private_Dirty"])
            total += one.sizes["Pss"] if one.is_shared or one.name.startswith("/dev/shm") else private
    return total


def initial_memory() -> int:
    """Return the memory before a test, after collecting garbage of earlier tests."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return memory()


every_engine = pytest.mark.parametrize(
    "engine", ["process", *(pytest.param(name, marks=pytest.mark.slow) for name in ("inline", "thread", "portable"))]
)


def make(engine: str, count: int, patch: pytest.MonkeyPatch) -> Any:
    if engine == "portable":
        patch.setattr(abilities, "can_share_arenas", lambda: False)
    name: Any = "process" if engine == "portable" else engine  # one of the loader's
    return DataLoader(Images(count), BATCH, num_workers=0 if engine == "inline" else 2, engine=name)


def checked(parts: Any) -> Any:
    """Touch every page of a batch, since untouched memory does not count yet."""
    image, mask, labels = parts
    assert np.asarray(image)[:, ::1024].sum() == np.asarray(labels).sum() * (IMAGE_BYTES // 4 // 1024)
    assert np.asarray(mask)[:, ::1024].sum() == np.asarray(labels).sum() * (IMAGE_BYTES // 8 // 1024)
    return parts


@every_engine
def test_closed_loaders_leave_only_kept_batches(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = initial_memory()
    kept = []
    for _ in range(3):
        loader = make(engine, 60, monkeypatch)
        batches = iter(loader)
        kept.append([checked(next(batches))[1:] for _ in range(10)])
        loader.close()
        del batches, loader
    held = sum(mask.nbytes for some in kept for mask, _ in some)
    assert memory() - before < 1.25 * held + CONSTANT
    for some in kept:
        del some[1:]  # no call to feedline follows
    assert memory() - before < 1.25 * held / 10 + CONSTANT
