"""How long does training wait when a few batches take much longer than the others?

120 batches, four workers. A batch takes 20 ms to make, and every 21st takes 400 ms. The training step takes 5 ms.
Samples wait and compute nothing: a slow read from a network is like that.

Shown is, for each loader and setting, how long the epoch took once the first batch had come, and the longest wait:
medians of three epochs. The four workers need 1.2 s for all batches if none of them ever waits.

    python docs/learn/experiments/stragglers.py
"""

# ruff: noqa: D101, D103, T201 (a script that prints)

from __future__ import annotations

import time
import warnings
from typing import Any

import torch.utils.data

import feedline


class Reads(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 120

    def __getitem__(self, index: int) -> int:
        time.sleep(0.4 if index % 21 == 8 else 0.02)
        return index


def waited(loader: Any) -> tuple[float, float]:
    batches = iter(loader)
    next(batches)
    begin, longest = time.perf_counter(), 0.0
    while True:
        asked = time.perf_counter()
        if next(batches, None) is None:
            return time.perf_counter() - begin, longest
        longest = max(longest, time.perf_counter() - asked)
        time.sleep(0.005)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    settings = {
        "torch": (torch.utils.data.DataLoader, {}),
        "torch, prefetch_factor=8": (torch.utils.data.DataLoader, {"prefetch_factor": 8}),
        "torch, in_order=False": (torch.utils.data.DataLoader, {"in_order": False}),
        "feedline": (feedline.DataLoader, {}),
        "feedline, seed=1": (feedline.DataLoader, {"seed": 1}),
        "feedline, in_order=False": (feedline.DataLoader, {"in_order": False}),
    }
    print(f"{'':26}{'epoch':>8}{'longest wait':>14}")
    for name, (loader_class, options) in settings.items():
        found = sorted(waited(loader_class(Reads(), 1, num_workers=4, **options)) for _ in range(3))[1]
        print(f"{name:26}{found[0]:6.2f} s{found[1]:12.2f} s")
