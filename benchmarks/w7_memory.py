"""Question: how much memory do workers add, at the start and while they run?

Knob: what the dataset holds: 1 GB of NumPy arrays, or with `--strings` a Python list of five million path strings, and
the result of `feedline.share` for this list; and the start method.

Held still: four workers, half an epoch in shuffled order, a fresh program for every measurement. Memory is the summed
PSS of parent and workers, in which a shared page counts once.

How to read it, in MB: `started` is the memory beyond the dataset alone after the first batches, `growth` the increase
from there to the end of the half epoch. Reading a Python object writes its reference count, so forked workers unshare
lists page by page as they go: that is the growth. Arrays do not grow; with spawn and forkserver their cost is in
`started`: one copy for each worker, unless the loader shares them. A growth of a few MB either way comes from the
allocator. `feedline.share` turns a list into arrays. `dataset` is the whole program with the dataset and torch loaded.

    python -m benchmarks.w7_memory
    python -m benchmarks.w7_memory --strings
    python -m benchmarks.w7_memory --start-method forkserver --json w7.jsonl
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial

from benchmarks import flags, program, workloads
from feedline.tools.measure import harness, rows

COLUMNS = (
    rows.Column("dataset", "dataset\nMB"),
    rows.Column("started", "started\nMB", with_range=True),
    rows.Column("growth", "growth\nMB", digits=1, with_range=True),
    rows.Column("peak", "peak\nMB", better="lower"),  # of the growth there is no ratio: it may be nothing or below
    rows.Column("seconds", "s", digits=1),
)
HELD = {"arrays": workloads.HeldArrays, "strings": workloads.HeldStrings, "shared": workloads.SharedStrings}


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__,
        engine=["process"],
        rounds=3,  # memory varies far less than time
        workers=[4],
        dataset_mb=1024,
        string_count=5_000_000,
        batch_size=256,
    )
    flags.choose(parser, "--start-method", flags.START_METHODS, ["fork"])
    parser.add_argument("--strings", action="store_true", help="the dataset holds a list of strings instead of arrays")
    parser.add_argument("--share", type=float, default=0.5, help="of an epoch to run (0.5)")
    arguments = parser.parse_args(argv)
    entries = [
        harness.Entry(
            {"holds": holds, "start method": method, "workers": workers},
            side,
            partial(
                program.run,
                "w7_memory",
                side,
                holds=holds,
                size=arguments.string_count if arguments.strings else arguments.dataset_mb,
                workers=workers,
                start_method=method,
                batch_size=arguments.batch_size,
                share=arguments.share,
            ),
        )
        for holds in (("strings", "shared") if arguments.strings else ("arrays",))
        for method in arguments.start_method
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]
    outcomes = rows.measure(entries, arguments)
    rows.publish("w7_memory", outcomes, arguments, columns=COLUMNS, details=False)
    return 0


def measure(
    side: harness.Side, holds: str, size: int, workers: int, start_method: str, batch_size: int, share: float
) -> harness.Figures:
    """Read the memory of one loader over a part of an epoch in this program."""
    dataset = HELD[holds](size)
    program.trim()
    alone = program.pss_mb()
    loader = side.open(
        dataset, batch_size=batch_size, shuffle=True, num_workers=workers, multiprocessing_context=start_method
    )
    # A few batches from every worker: each has started, and the loader's own memory has reached its working size.
    first = min(len(loader) // 4, 8 * workers)
    last = max(first + 1, int(len(loader) * share))
    started = peak = began = read_at = 0.0
    iterator = iter(loader)  # kept by name: otherwise the workers would end before the last reading
    try:
        for number, batch in enumerate(iterator, start=1):
            workloads.touch(batch)
            if number == first:
                started = peak = program.pss_mb()
                began = read_at = time.perf_counter()
            elif number == last:
                break
            elif number > first and time.perf_counter() - read_at > 0.5:
                peak = max(peak, program.pss_mb())
                read_at = time.perf_counter()
        seconds = time.perf_counter() - began
        ended = program.pss_mb()
    finally:
        del iterator
        harness.close(loader)
    return {
        "dataset": alone,
        "started": started - alone,
        "growth": ended - started,
        "peak": max(peak, ended),
        "seconds": seconds,
    }


if __name__ == "__main__":
    sys.exit(program.main(main, measure))
