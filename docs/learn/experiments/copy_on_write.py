"""What does a forked worker copy of a dataset that it only reads?

Each dataset has a million numbers or names, about the same number of bytes in all. One worker reads every sample
once. The collate function runs in the worker, so it can return what the worker has for itself: the private dirty
pages that `/proc/self/smaps_rollup` counts. Memory that the worker shares with the training process is not in it.

Read the last two columns: how much the worker has at its first and at its last batch. An array stays shared. Objects
are copied page by page, since reading one changes its reference count, which lies in the same page as the object.

    python docs/learn/experiments/copy_on_write.py
"""

# ruff: noqa: D101, D103, T201 (a script that prints)

from __future__ import annotations

import gc
import re
import sys
from pathlib import Path

import numpy as np
import torch.utils.data

import feedline

COUNT, BATCH = 1_000_000, 10_000
KINDS = ("array of numbers", "array of fixed-width names", "list of numbers", "list of names", "array of objects")


def make(kind: str) -> object:
    """Return a million values that are stored as `kind` says."""
    if kind == "array of numbers":
        return np.arange(COUNT * 10).reshape(COUNT, 10)  # 80 MB
    names = [f"images/{number:07d}/a-file-with-a-long-name.jpeg" for number in range(COUNT)]
    if kind == "array of fixed-width names":
        return np.array(names, dtype="S43")
    if kind == "list of numbers":
        return [float(number) for number in range(COUNT)]
    if kind == "list of names":
        return names
    return np.array(names, dtype=object)


class Stored(torch.utils.data.Dataset):
    def __init__(self, values: object) -> None:
        self.values = values

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> int:
        self.values[index]
        return 0


def private_mb(samples: list[int]) -> float:
    """A collate function that throws the samples away and returns what this process has for itself, in MB."""
    found = re.search(r"Private_Dirty:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())
    return int(found[1]) / 1000


def size_mb(values: object) -> float:
    objects = sum(map(sys.getsizeof, values)) if isinstance(values, list) or values.dtype == object else 0
    return (objects + (values.nbytes if isinstance(values, np.ndarray) else sys.getsizeof(values))) / 1e6


def measured() -> list[tuple[str, float, str, float, float]]:
    """Return kind, size, loader, and the worker's own memory at its first and its last batch, all in MB."""
    rows = []
    for kind in KINDS:
        values = make(kind)
        gc.collect()
        for loader_class in (torch.utils.data.DataLoader, feedline.DataLoader):
            loader = loader_class(
                Stored(values), BATCH, num_workers=1, collate_fn=private_mb, multiprocessing_context="fork"
            )
            memory = list(loader)
            rows.append((kind, size_mb(values), loader_class.__module__.split(".")[0], memory[0], memory[-1]))
    return rows


if __name__ == "__main__":
    print(f"{'dataset':28}{'MB':>6}  {'loader':10}{'first':>6}{'last':>6}")
    for kind, size, loader, first, last in measured():
        print(f"{kind:28}{size:6.0f}  {loader:10}{first:6.0f}{last:6.0f}")
