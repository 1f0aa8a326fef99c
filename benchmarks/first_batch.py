"""Question: how long does `next(iter(loader))` take without workers?

Scripts do this to look at a batch, or to take one batch per step from a loader that they begin again each time.

Knob: the dataset (a list of numbers, a TensorDataset) and whether it is shuffled.

Held still: batches of 8 out of 1000 samples. The two loaders take turns, one iteration each, and the loop reads another
4 MB after each, as a training step would: an iteration that always finds its own code in the caches is no program's.

How to read it: microseconds for the iterator, its first batch and dropping the iterator, the median of all; and our
time divided by torch's.

    python -m benchmarks.first_batch
    python -m benchmarks.first_batch --count 2000 --json first.jsonl
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.utils.data
from torch.utils.data import TensorDataset

import feedline

LENGTH = 1000
SIZE = 8
OTHER_BYTES = 4 << 20


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=500, help="iterations of each loader (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows as JSON lines")
    arguments = parser.parse_args(argv)
    datasets: dict[str, Any] = {  # Any: torch accepts more than its annotations allow
        "list": list(range(LENGTH)),
        "TensorDataset": TensorDataset(torch.arange(float(LENGTH)).reshape(-1, 1)),
    }
    rows = []
    for name, dataset in datasets.items():
        for shuffle in (False, True):
            loaders = {
                "torch": torch.utils.data.DataLoader(dataset, SIZE, shuffle=shuffle),
                "feedline": feedline.DataLoader(dataset, SIZE, shuffle=shuffle),
            }
            row = {"dataset": name, "shuffle": shuffle, **measured(loaders, arguments.count)}
            row["ratio"] = row["feedline"] / row["torch"]
            rows.append(row)
            print(
                f"{name:14} shuffle={shuffle!s:5}  torch {row['torch']:5.0f} us  feedline {row['feedline']:5.0f} us  "
                f"ratio {row['ratio']:.2f}"
            )
    if arguments.json is not None:
        arguments.json.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return 0


# Any: a loader of either library.
def measured(loaders: dict[str, Any], count: int) -> dict[str, Any]:
    """Return the median microseconds of an iteration with each loader."""
    other = np.ones(OTHER_BYTES, np.uint8)
    times: dict[str, list[int]] = {name: [] for name in loaders}
    for _ in range(count + 5):
        for name, loader in loaders.items():
            began = time.perf_counter_ns()
            next(iter(loader))
            times[name].append(time.perf_counter_ns() - began)
            other.sum()
    return {name: statistics.median(found[5:]) / 1e3 for name, found in times.items()}


if __name__ == "__main__":
    sys.exit(main())
