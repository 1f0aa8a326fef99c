"""One sampler's time and memory, measured from inside: `w5_index_space` runs this in a fresh interpreter.

Prints one JSON object: `first_ms`, `next_ms`, `indices_per_s`, `block_indices_per_s` (feedline only), `memory_mb`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import harness
from feedline import abc
from feedline.types import Key

FIRST = 64
BLOCK = 1 << 14
RANK, WORLD_SIZE = 3, 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--sampler", required=True)
    parser.add_argument("--size", type=int, required=True)
    parser.add_argument("--count", type=int, required=True, help="indices over which feedline is timed")
    arguments = parser.parse_args()
    sys.stdout.write(json.dumps(measure(arguments)))
    return 0


def measure(arguments: argparse.Namespace) -> harness.Figures:
    make = maker(arguments.library, arguments.sampler, arguments.size)
    before = reset_peak_mb()
    began = time.perf_counter()
    sampler = make()
    consume(islice(sampler, FIRST))
    first_s = time.perf_counter() - began
    began = time.perf_counter()
    consume(islice(sampler, FIRST))
    next_s = time.perf_counter() - began
    count = len(sampler) if arguments.library == harness.TORCH else min(len(sampler), arguments.count)
    began = time.perf_counter()
    consume(islice(sampler, count))
    all_s = time.perf_counter() - began
    return {
        "first_ms": first_s * 1e3,
        "next_ms": next_s * 1e3,
        "indices_per_s": count / all_s,
        "block_indices_per_s": block_rate(sampler, count) if isinstance(sampler, abc.Sampler) else None,
        "memory_mb": max(0.0, peak_mb() - before),
    }


# Any: a sampler of torch or of feedline.
def maker(library: str, name: str, size: int) -> Callable[[], Any]:
    if library == harness.TORCH:
        from torch.utils import data as samplers
    else:
        from feedline import samplers  # type: ignore[no-redef]
    dataset = range(size)
    if name == "random":
        return lambda: samplers.RandomSampler(dataset)
    if name == "distributed":
        return lambda: samplers.DistributedSampler(dataset, WORLD_SIZE, RANK)  # type: ignore[arg-type]
    weights = torch.from_numpy(np.random.default_rng(0).random(size))
    return lambda: samplers.WeightedRandomSampler(weights, size)  # type: ignore[arg-type]


def consume(indices: Iterable[int]) -> None:
    deque(indices, maxlen=0)


def block_rate(sampler: abc.Sampler, count: int) -> float:
    began = time.perf_counter()
    for start in range(0, count, BLOCK):
        sampler.at(np.arange(start, min(start + BLOCK, count)), Key(0, 0))
    return count / (time.perf_counter() - began)


def reset_peak_mb() -> float:
    """Make the peak of resident memory what is resident now, and return it."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


def peak_mb() -> float:
    """Read the highest resident memory so far. tracemalloc would not see what torch allocates."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("this system does not tell the peak of resident memory; run this benchmark on Linux")


if __name__ == "__main__":
    sys.exit(main())
