"""Question: how long does a training loop wait for its first batch?

Knob: the start method (fork, forkserver, spawn) and the number of workers.

Held still: a dataset holding 1 GB of NumPy arrays whose samples are cheap, batches of 16, 32 batches per epoch. Every
measurement is a fresh program that has torch loaded, because the first loader of a program does work that later ones
need not repeat.

How to read it, in milliseconds from `iter()` to the first batch in hand:
  first          the first loader of a program
  restart        the second epoch of that loader, whose workers do not persist
  pass           the whole of that epoch, until its workers have ended: what short passes cost (--batches 4)
  later          another loader in the same program
  restart, kept  the second epoch of that one, whose workers persist
The constructor's own time is in the rows (`construct`). Ratios are torch's time divided by ours, round by round: above
1 is faster. With fork the size of the dataset should hardly matter; with forkserver and spawn the dataset has
to reach the workers, once or once for each.

    python -m benchmarks.w4_start --start-method fork --workers 2 4
    python -m benchmarks.w4_start --start-method forkserver spawn --workers 4 --json w4.jsonl
    python -m benchmarks.w4_start --start-method fork forkserver --workers 4 --dataset-mb 1 --batches 4
    python -m benchmarks.w4_start --start-method spawn --workers 4 --dataset-mb 1 --strings 1000000
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from functools import partial

# What training scripts import: it is there before the loader is, in this program as in workers that import it anew.
import PIL.Image  # noqa: F401
import torch.nn.functional
import torch.optim.lr_scheduler
import torch.utils.data  # noqa: F401

from benchmarks import flags, program, workloads
from feedline.tools.measure import harness, rows

COLUMNS = tuple(
    rows.Column(figure, title, with_range=True, better="lower")
    for figure, title in {
        "first": "first",
        "restart": "restart",
        "pass": "pass",
        "later": "later",
        "restart_kept": "restart, kept",
    }.items()
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process"], workers=[2, 4], dataset_mb=1024, strings=0, batch_size=16, batches=32
    )
    flags.choose(parser, "--start-method", flags.START_METHODS)
    arguments = parser.parse_args(argv)
    outcomes = rows.measure(entries(arguments), arguments)
    rows.publish("w4_start", outcomes, arguments, columns=COLUMNS, details=False)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    made = []
    for method in arguments.start_method:
        for workers in arguments.workers:
            for side in harness.sides(workers, arguments.engine):
                run = partial(
                    program.run,
                    "w4_start",
                    side,
                    start_method=method,
                    workers=workers,
                    batch_size=arguments.batch_size,
                    batches=arguments.batches,
                    dataset_mb=arguments.dataset_mb,
                    strings=arguments.strings,
                )
                case: harness.Case = {"start method": method, "workers": workers}
                made.append(harness.Entry(case, side, partial(harness.watched, run)))
    return made


def measure(
    side: harness.Side, start_method: str, workers: int, batch_size: int, batches: int, dataset_mb: int, strings: int
) -> harness.Figures:
    """Start two loaders in this program; the second keeps its workers."""
    dataset = workloads.HeldArrays(dataset_mb, length=batches * batch_size, strings=strings)
    opened = partial(
        side.open, dataset, batch_size=batch_size, num_workers=workers, multiprocessing_context=start_method
    )
    construct, first, (restart, whole) = two_epochs(partial(opened, persistent_workers=False))
    _, later, (kept, _) = two_epochs(partial(opened, persistent_workers=True))
    return {
        "construct": construct,
        "first": first[0],
        "restart": restart,
        "pass": whole,
        "later": later[0],
        "restart_kept": kept,
    }


def two_epochs(opened: partial[harness.LoaderLike]) -> tuple[float, tuple[float, float], tuple[float, float]]:
    """Return milliseconds for the constructor, and for the first batch and the whole of two epochs."""
    began = time.perf_counter()
    loader = opened()
    constructed = time.perf_counter() - began
    try:
        first, second = epoch_ms(loader), epoch_ms(loader)
    finally:
        harness.close(loader)
    return constructed * 1e3, first, second


def epoch_ms(loader: harness.LoaderLike) -> tuple[float, float]:
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
    sys.exit(program.main(main, measure))
