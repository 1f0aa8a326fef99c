"""How wrong can a benchmark be that compares a loader with itself? And how much longer does the first epoch take?

Run it from the root of the repository (about half a minute):

    python docs/learn/experiments/where_the_time_goes.py

It prints one JSON object.

itself     two names for one setting (torch's loader, no workers, samples that compute). `blocks` measures all rounds of
           A, then all rounds of B; `turns` measures A B A B. The true ratio is 1. `blocks_mean` and `turns_median` are
           the ratios that ten repetitions of each benchmark report: lowest and highest
epochs     milliseconds of five epochs with two workers that open a file when they need it: workers started for every
           epoch against workers that are kept
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch.utils.data


class Computing(torch.utils.data.Dataset[Any]):
    """Samples that compute for some tens of microseconds."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        return np.sort(np.random.default_rng(index).random(512))


class Opening(torch.utils.data.Dataset[Any]):
    """Rows of a file that each process opens when it needs them; opening takes as long as reading an index would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: Any = None

    def __len__(self) -> int:
        return 512

    def __getitem__(self, index: int) -> Any:
        if self.rows is None:
            time.sleep(0.2)
            self.rows = np.load(self.path, mmap_mode="r")
        return self.rows[index].copy()


def epoch_ms(loader: Any) -> float:
    """Time one pass."""
    begin = time.perf_counter()
    for _ in loader:
        pass
    return (time.perf_counter() - begin) * 1e3


def itself(rounds: int = 7, repetitions: int = 10) -> dict[str, Any]:
    """Compare a loader with itself."""
    loader = torch.utils.data.DataLoader(Computing(), batch_size=32)
    epoch_ms(loader)
    blocks, turns = [], []
    for _ in range(repetitions):
        first = [epoch_ms(loader) for _ in range(rounds)]
        second = [epoch_ms(loader) for _ in range(rounds)]
        blocks.append(statistics.mean(first) / statistics.mean(second))
        pairs = [(epoch_ms(loader), epoch_ms(loader)) for _ in range(rounds)]
        turns.append(statistics.median(a / b for a, b in pairs))
    return {
        "rounds": rounds,
        "blocks_mean": [round(min(blocks), 2), round(max(blocks), 2)],
        "turns_median": [round(min(turns), 2), round(max(turns), 2)],
        "one_epoch_ms": [round(min(first), 1), round(max(first), 1)],
    }


def epochs() -> dict[str, Any]:
    """Time epochs one by one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.zeros((512, 1000), np.float32))
        found = {}
        for name, kept in (("started_anew", False), ("kept", True)):
            loader = torch.utils.data.DataLoader(
                Opening(path), batch_size=32, num_workers=2, persistent_workers=kept, multiprocessing_context="fork"
            )
            found[name] = [round(epoch_ms(loader)) for _ in range(5)]
            del loader
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"itself": itself(), "epochs": epochs()}, indent=1) + "\n")
