"""What does it cost to send a dataset to the workers, and a batch back?

First table: a dataset of one 80 MB array is given to two workers by fork and by forkserver. Both read all of it, and
one returns what it has for itself (private dirty pages). The figure is how much more that is than with an array of 8
bytes. Under forkserver the dataset is pickled. Each figure comes from a program of its own.

Second table: a batch of a million bytes comes back from one worker as one tensor, as 200 tensors in a list, as 200
arrays, and as Python numbers. The figure is the processor time of both processes for a batch, in milliseconds:
waiting for other programs does not count. Each loader's own figures are to be compared with one another, from top to
bottom.

    python docs/learn/experiments/what_crosses.py
"""

# ruff: noqa: D101, D103, T201 (a script that prints)

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data

import feedline

BATCHES = 40
LOADERS = (torch.utils.data.DataLoader, feedline.DataLoader)


class Rows(torch.utils.data.Dataset):
    def __init__(self, numbers: int) -> None:
        self.numbers = np.arange(numbers)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return int(self.numbers.sum())


def private_mb(samples: list[int]) -> float:
    found = re.search(r"Private_Dirty:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text())
    return int(found[1]) / 1000


def own_mb(loader: int, method: str, size: int) -> float:
    command = [sys.executable, __file__, str(loader), method, str(size)]
    return float(subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout)


def one_tensor() -> Any:
    return torch.zeros(200, 625, dtype=torch.float64)


def many_tensors() -> Any:
    return [torch.zeros(625, dtype=torch.float64) for _ in range(200)]


def many_arrays() -> Any:
    return [np.zeros(625) for _ in range(200)]


def numbers() -> Any:
    return [[float(number) for number in range(625)] for _ in range(200)]


class Batches(torch.utils.data.Dataset):
    """A batch is made once, in the worker, so that next to nothing but sending it is measured."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make
        self.batch: Any = None

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> Any:
        if self.batch is None:
            self.batch = self.make()
        return self.batch


def unchanged(batch: Any) -> Any:
    return batch


def milliseconds(make: Callable[[], Any], loader_class: Any) -> float:
    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    spent = []
    for count in (1, BATCHES):  # what starting a worker costs is in both
        part = torch.utils.data.Subset(Batches(make), range(count))
        start = used()
        for _ in loader_class(part, None, num_workers=1, collate_fn=unchanged, multiprocessing_context="fork"):
            pass
        spent.append(used() - start)
    return max(0.0, spent[1] - spent[0]) / (BATCHES - 1) * 1000


if __name__ == "__main__":
    torch.set_num_threads(1)
    names = [loader_class.__module__.split(".")[0] for loader_class in LOADERS]
    if sys.argv[1:]:
        loader_class, method, size = LOADERS[int(sys.argv[1])], sys.argv[2], int(sys.argv[3])
        options = {"num_workers": 2, "collate_fn": private_mb, "multiprocessing_context": method}
        print(list(loader_class(Rows(size), 1, **options))[-1])
        sys.exit()
    print(f"{'start method':16}" + "".join(f"{name:>10}" for name in names))
    for method in ("fork", "forkserver"):
        found = [own_mb(number, method, 10_000_000) - own_mb(number, method, 1) for number in range(2)]
        print(f"{method:16}" + "".join(f"{mb:7.0f} MB" for mb in found))
    print(f"\n{'batch':16}" + "".join(f"{name:>10}" for name in names))
    for make in (one_tensor, many_tensors, many_arrays, numbers):
        found = [statistics.median(milliseconds(make, cls) for _ in range(3)) for cls in LOADERS]
        print(f"{make.__name__:16}" + "".join(f"{ms:7.1f} ms" for ms in found))
