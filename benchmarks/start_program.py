"""One program's start-ups, measured from inside: `w4_start` runs this in a fresh interpreter for every measurement.

Prints one JSON object with milliseconds: `construct` (the loader's constructor), `first` (iter() to first batch, first
loader of this program), `restart` (iter() to first batch of its second epoch, workers not kept), `pass` (the whole of
that epoch, until its workers are gone), `later` (iter() to first batch of a second loader), `restart_kept` (the second
epoch of that one, which keeps its workers).
"""

from __future__ import annotations

import argparse
import json
import sys
import time

# What training scripts import: it is there before the loader is, in this program as in workers that import it anew.
import PIL.Image  # noqa: F401
import torch.nn.functional
import torch.optim.lr_scheduler
import torch.utils.data  # noqa: F401

from benchmarks import harness, workloads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--engine")
    parser.add_argument("--start-method", required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--dataset-mb", type=int, required=True)
    parser.add_argument("--strings", type=int, required=True)
    arguments = parser.parse_args()
    length = arguments.batches * arguments.batch_size
    dataset = workloads.HeldArrays(arguments.dataset_mb, length=length, strings=arguments.strings)
    with harness.expected_warnings():
        sys.stdout.write(json.dumps(measure(harness.Side(arguments.library, arguments.engine), dataset, arguments)))
    return 0


def measure(side: harness.Side, dataset: workloads.HeldArrays, arguments: argparse.Namespace) -> harness.Figures:
    construct, first, (restart, whole) = two_epochs(side, dataset, arguments, keep_workers=False)
    _, later, (kept, _) = two_epochs(side, dataset, arguments, keep_workers=True)
    return {
        "construct": construct,
        "first": first[0],
        "restart": restart,
        "pass": whole,
        "later": later[0],
        "restart_kept": kept,
    }


def two_epochs(
    side: harness.Side, dataset: workloads.HeldArrays, arguments: argparse.Namespace, *, keep_workers: bool
) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Return milliseconds for the constructor, and for the first batch and the whole of two epochs."""
    began = time.perf_counter()
    loader = side.open(
        dataset,
        batch_size=arguments.batch_size,
        num_workers=arguments.workers,
        multiprocessing_context=arguments.start_method,
        persistent_workers=keep_workers,
    )
    constructed = time.perf_counter() - began
    try:
        epochs = [epoch_ms(loader) for _ in range(2)]
    finally:
        harness.close(loader)
    return constructed * 1e3, epochs[0], epochs[1]


def epoch_ms(loader: harness.SizedIterable) -> tuple[float, float]:
    """Iterate one epoch to its end; return the milliseconds until its first batch was there and touched, and all."""
    began = time.perf_counter()
    iterator = iter(loader)
    workloads.touch(next(iterator))
    waited = time.perf_counter() - began
    for batch in iterator:
        workloads.touch(batch)
    del iterator
    return waited * 1e3, (time.perf_counter() - began) * 1e3


if __name__ == "__main__":
    sys.exit(main())
