"""Question: how much time does a worker spend on a batch beyond the dataset and the stacking?

Knob: the number of workers.

Held still: the plain map-style dataset of `w1_tiny`, batches of 64, shuffled; the consumer touches both tensors.

How to read it, in microseconds of CPU time per batch: `worker` is what all worker processes use, `own` what the same
samples and one `torch.stack` of them take in a bare loop in the same round, `beyond` the difference: reading the task,
setting up, writing the batch where the training loop finds it, answering. Lower is better.

    python -m benchmarks.worker_cost
    python -m benchmarks.worker_cost --workers 2 --rounds 9 --json worker.jsonl
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks import flags
from feedline.tools.measure import harness, rows, workloads

COLUMNS = (
    rows.Column("beyond_us", "beyond\nus", with_range=True, better="lower"),
    rows.Column("worker_us", "worker\nus"),
    rows.Column("own_us", "own\nus"),
    rows.Column("batches_per_s", "batches/s", better="higher"),
    rows.CONSUMER,
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], seconds=1.0, warmup=32, workers=[1, 2], samples=100_000, batch_size=64
    )
    flags.add_start_method(parser)
    arguments = parser.parse_args(argv)
    dataset = workloads.TinyMap(arguments.samples)
    entries = [
        replace(entry, measure=partial(measure, entry.measure, dataset, arguments.batch_size))
        for entry in rows.loaders(arguments, {}, rows.same(dataset), shuffle=True, drop_last=True)
    ]
    rows.publish("worker_cost", rows.measure(entries, arguments), arguments, columns=COLUMNS, details=False)
    return 0


def measure(steady: Callable[[], harness.Figures], dataset: workloads.TinyMap, batch_size: int) -> harness.Figures:
    figures = steady()
    own_us = bare_us(dataset, batch_size)
    all_us = (figures["cpu_s_per_1000"] or 0.0) * 1e3 * batch_size
    worker_us = all_us - (figures["parent_cpu_us"] or 0.0)
    return {**figures, "worker_us": worker_us, "own_us": own_us, "beyond_us": worker_us - own_us}


def bare_us(dataset: workloads.TinyMap, batch_size: int, *, batches: int = 500) -> float:
    """Take shuffled samples and stack them in a bare loop; return microseconds of CPU time per batch."""
    order = torch.randperm(len(dataset))[: batches * batch_size].tolist()
    began = time.thread_time()
    for first in range(0, len(order), batch_size):
        samples = [dataset[index] for index in order[first : first + batch_size]]
        torch.stack([row for row, _ in samples])
        torch.tensor([label for _, label in samples])
    return (time.thread_time() - began) / (len(order) / batch_size) * 1e6


if __name__ == "__main__":
    sys.exit(main())
