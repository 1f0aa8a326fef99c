"""Question: what does an order of indices cost, before the first batch and after it?

Knob: the number of samples, from a million to a billion, and the sampler: `RandomSampler`, `DistributedSampler` (rank
3 of 8) and `WeightedRandomSampler` (with replacement, as many draws as weights).

Held still: the sampler is iterated over from Python, one integer at a time, as torch's loader does. Every measurement
is a fresh program. torch's samplers hold a list of all indices, about 48 bytes each: above `--torch-max` they are not
run. torch draws from 2**24 weights at most.

How to read it: `first` is milliseconds from constructing the sampler to its 64th index, `next` those to the 64th index
of the next epoch. `indices/s` counts from `iter()` on, over a whole epoch for torch (whose work comes first) and over
at most `--count` indices for feedline (whose work is the same all along). `in blocks` is the rate at which feedline's
own loader gets them, as arrays. `memory` is the largest increase of the program's resident memory over its value before
the sampler; the weights themselves are not counted. Ratios are round by round; above 1 is better.

    python -m benchmarks.w5_index_space
    python -m benchmarks.w5_index_space --sampler random --sizes 1e6 1e7 --json w5.jsonl
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch

from benchmarks import flags, program
from feedline import abc
from feedline.tools.measure import harness, rows
from feedline.types import Key

SAMPLERS = ("random", "distributed", "weighted")
TORCH_BYTES = 48
"""What torch's samplers hold for each index: 8 bytes in the permutation, 8 in a list, 32 for the integer itself."""
TORCH_WEIGHTS = 1 << 24
FIRST = 64
BLOCK = 1 << 14
RANK, WORLD_SIZE = 3, 8

COLUMNS = (
    rows.Column("first_ms", "first\nms", digits=2, with_range=True, better="lower"),
    rows.Column("next_ms", "next\nms", digits=2),
    rows.Column("indices_per_s", "million\nindices/s", scale=1e-6, digits=1, better="higher"),
    rows.Column("block_indices_per_s", "million/s\nin blocks", scale=1e-6, digits=1),
    rows.Column("memory_mb", "memory\nMB", digits=1, better="lower"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__,
        rounds=3,  # torch's programs take long, and differ by orders of magnitude
        sizes=[10**6, 10**7, 10**8, 10**9],
        weights=[10**6, 10**7, 16 * 10**6, 10**8],
        torch_max=10**8,
        count=10**7,
    )
    flags.choose(parser, "--sampler", SAMPLERS)
    arguments = parser.parse_args(argv)
    cases = [
        (sampler, size)
        for sampler in arguments.sampler
        for size in (arguments.weights if sampler == "weighted" else arguments.sizes)
    ]
    reasons = {case: why_not_torch(*case, arguments.torch_max) for case in cases}
    entries = [
        harness.Entry(
            {"sampler": sampler, "size": size},
            side,
            partial(
                harness.watched,
                partial(program.run, "w5_index_space", side, sampler=sampler, size=size, count=arguments.count),
            ),
        )
        for sampler, size in cases
        for side in (harness.Side(harness.TORCH), harness.Side(harness.FEEDLINE))
        if side.library == harness.FEEDLINE or reasons[sampler, size] is None
    ]
    outcomes = rows.measure(entries, arguments)
    rows.publish("w5_index_space", outcomes, arguments, columns=COLUMNS, details=False)
    if arguments.json != "-":
        for (sampler, size), reason in reasons.items():
            if reason is not None:
                print(f"torch, {sampler}, {size:,} not run: {reason}")
    return 0


def why_not_torch(sampler: str, size: int, most: int) -> str | None:
    """Say why torch's sampler is not run, or None."""
    if sampler == "weighted" and size > TORCH_WEIGHTS:
        return f"torch takes up to {TORCH_WEIGHTS:,} weights"
    if size > most:
        return f"would need ~{size * TORCH_BYTES / 1e9:,.0f} GB"
    return None


def measure(side: harness.Side, sampler: str, size: int, count: int) -> harness.Figures:
    """Go through one sampler in this program."""
    make = maker(side.library, sampler, size)
    program.forget_peak()
    before = program.resident_mb("VmHWM")
    began = time.perf_counter()
    made = make()
    first_ms = (time.perf_counter() - began) * 1e3 + ms_of(islice(made, FIRST))
    next_ms = ms_of(islice(made, FIRST))
    count = len(made) if side.library == harness.TORCH else min(len(made), count)
    all_ms = ms_of(islice(made, count))
    return {
        "first_ms": first_ms,
        "next_ms": next_ms,
        "indices_per_s": count / all_ms * 1e3,
        "block_indices_per_s": block_rate(made, count) if isinstance(made, abc.Sampler) else None,
        "memory_mb": max(0.0, program.resident_mb("VmHWM") - before),
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


def ms_of(indices: Iterable[int]) -> float:
    began = time.perf_counter()
    deque(indices, maxlen=0)
    return (time.perf_counter() - began) * 1e3


def block_rate(sampler: abc.Sampler, count: int) -> float:
    began = time.perf_counter()
    for start in range(0, count, BLOCK):
        sampler.at(np.arange(start, min(start + BLOCK, count)), Key(0, 0))
    return count / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(program.main(main, measure))
