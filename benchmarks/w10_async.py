"""Question: with samples that have to be fetched from far away, what are coroutines worth against worker processes?

Knob: the number of workers. torch's loader reads one sample after the other in each worker; feedline's has
the same dataset with `async def __getitem__`, of which it awaits all samples of a batch at once.

Held still: a simulated object store that answers after a fixed time (20 ms) with 16 KiB, whatever the number of
requests: waiting takes no CPU, as with a real one. Batches of 64.

How to read it: `x torch` is at the same number of workers, `x torch's best` against the best number of torch's in this
run. The most that one request at a time can reach is workers / 20 ms. With a real store its own limits come first.

    python -m benchmarks.w10_async
    python -m benchmarks.w10_async --latency-ms 5 --workers 1 8 64
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from benchmarks import harness, rows, workloads

COLUMNS = (rows.RATE, *rows.COSTS)


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=1.5, warmup=2, engine=["process", "thread"])
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--sample-bytes", type=int, default=16384)
    parser.add_argument("--samples", type=int, default=100_000, help="in an epoch (100,000)")
    arguments = parser.parse_args(argv)
    outcomes = rows.measure_entries(entries(arguments), arguments)
    rows.publish("w10_async", outcomes, arguments, columns=COLUMNS)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    store = (arguments.samples, arguments.latency_ms / 1e3, arguments.sample_bytes)
    one_by_one, at_once = workloads.Remote(*store), workloads.AsyncRemote(*store)
    return [
        harness.Entry(
            case={"workers": workers},
            side=side,
            open=partial(
                side.open,
                one_by_one if side.library == harness.TORCH else at_once,
                batch_size=arguments.batch_size,
                **harness.worker_arguments(workers),
            ),
            consume=workloads.touch,
            batch_size=arguments.batch_size,
        )
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]


if __name__ == "__main__":
    sys.exit(main())
