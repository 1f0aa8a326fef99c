"""Question: what does it cost to split a stream over workers, when samples cost almost nothing?

Knob: the number of workers, and what `__iter__` of the dataset is that the loader splits. Every worker has to go
through all of a generator. In the iterator of a range, workers skip what others deliver.

Held still: an iterable dataset of 100,000 integers, batches of 64, all of which are consumed. The loaders that are
marked `shard` split the stream themselves (`shard=True`). For the others, the dataset splits itself, as torch's
documentation shows: each worker makes only what it delivers.

How to read it: `first` is the seconds of a whole pass from `iter()` on, including the start of the workers; `again` is
those of the next pass, with workers already running. Lower is better.

    python -m benchmarks.sharded_stream
    python -m benchmarks.sharded_stream --workers 0 1 3 --samples 1e6
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from benchmarks import flags, workloads
from feedline.tools.measure import harness, rows

SHARDED = {"shard": workloads.Integers, "shard range": workloads.PlainIntegers}
COLUMNS = (
    rows.Column("first_s", "first s", digits=3, with_range=True, better="lower"),
    rows.Column("again_s", "again s", digits=3, with_range=True, better="lower"),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, engine=["process"], workers=[0, 3], samples=100_000, batch_size=64)
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    for workers in arguments.workers:
        for side in harness.sides(workers, arguments.engine):
            for kind in ("",) if side.library == harness.TORCH else ("", *SHARDED):
                once = partial(measure, side, kind, arguments.samples, arguments.batch_size, workers)
                shown = replace(side, engine=f"{side.engine}, {kind}") if kind else side
                entries.append(harness.Entry({"workers": workers}, shown, partial(harness.watched, once)))
    rows.publish("sharded_stream", rows.measure(entries, arguments), arguments, columns=COLUMNS)
    return 0


def measure(side: harness.Side, kind: str, samples: int, batch_size: int, workers: int) -> harness.Figures:
    stream = SHARDED.get(kind, workloads.SplitIntegers)(samples)
    options = {**harness.worker_arguments(workers), **({"shard": True} if kind else {})}
    loader = side.open(stream, batch_size=batch_size, **options)
    try:
        return {"first_s": pass_s(loader, samples), "again_s": pass_s(loader, samples)}
    finally:
        harness.close(loader)


def pass_s(loader: harness.LoaderLike, samples: int) -> float:
    """Consume everything; return the seconds."""
    began = time.perf_counter()
    seen = 0
    for batch in loader:
        workloads.touch(batch)
        seen += len(batch)
    if seen != samples:
        raise RuntimeError(f"{seen} samples were delivered instead of {samples}, so the time means nothing.")
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
