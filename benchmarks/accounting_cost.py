"""Question: what does it cost that a loader always measures its batches?

Knob: accounting on, as users have it, or off by a private flag. How the dataset is written (torch's `TensorDataset`, or
a plain map-style class of tiny samples), and the number of workers (0 or 2 processes).

Held still: 64 samples of ten floats and a label per batch, shuffled. These are about the smallest batches there are, so
the loader's own work shows.

How to read it: processor time, not wall time, so that other load on the machine matters less. On and off take turns, in
short epochs; `on / off` is the median over the pairs, with the quartiles. Both sides sum up how long the loop waited
for each batch, which costs 0.2 us. Workers also measure their tasks; `benchmarks/worker_cost.py` shows what that costs.

    python -m benchmarks.accounting_cost
    python -m benchmarks.accounting_cost --pairs 40 --batches 3000
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import feedline
from feedline.insight.observer import Observer
from feedline.tools.measure import workloads

DATASETS = {"tensors": workloads.tiny_tensors, "map": workloads.TinyMap}
_WARM_UP = 100


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", nargs="+", choices=sorted(DATASETS), default=sorted(DATASETS))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--batches", type=int, default=2000, help="of an epoch")
    parser.add_argument("--pairs", type=int, default=20, help="epochs with accounting, and as many without")
    arguments = parser.parse_args(argv)
    sys.stdout.write(f"{'dataset':10} {'workers':>7} {'us per batch':>12}   on / off (quartiles)\n")
    for name in arguments.dataset:
        dataset = DATASETS[name](64 * arguments.batches)
        for workers in arguments.workers:
            ratios, costs = _compared(dataset, workers, arguments.pairs)
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            cost_us = statistics.median(costs) * 1e6
            told = f"{middle:.4f} ({low:.4f} to {high:.4f})"
            sys.stdout.write(f"{name:10} {workers:7} {cost_us:12.1f}   {told}\n")
            sys.stdout.flush()
    return 0


# Any: a dataset of whatever kind.
def _compared(dataset: Any, workers: int, pairs: int) -> tuple[list[float], list[float]]:
    """Return the processor time with accounting as a multiple of that without, pair by pair, and the latter."""
    _epoch(dataset, workers)  # imports, and the memory of the first batches
    ratios, costs = [], []
    for pair in range(pairs):
        took = {}
        for off in (False, True) if pair % 2 else (True, False):
            Observer.is_off = off
            try:
                took[off] = _epoch(dataset, workers)
            finally:
                Observer.is_off = False
        ratios.append(took[False] / took[True])
        costs.append(took[True])
    return ratios, costs


def _epoch(dataset: Any, workers: int) -> float:
    """Return the processor time of the training process per batch, in seconds."""
    options: dict[str, Any] = {"num_workers": workers, "engine": "process"} if workers else {}
    loader = feedline.DataLoader(dataset, 64, shuffle=True, drop_last=True, **options)
    batches = iter(loader)
    for _ in range(min(_WARM_UP, len(loader) // 2)):
        next(batches)
    begun, count = time.process_time(), 0
    for _ in batches:
        count += 1
    return (time.process_time() - begun) / count


if __name__ == "__main__":
    sys.exit(main())
