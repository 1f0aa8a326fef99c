"""Question: for samples in a remote store, how do coroutines compare with worker processes?

Knob: the number of workers. torch's loader reads one sample after the other in each worker; feedline's has the same
dataset with `async def __getitem__`, and awaits all samples of a batch at once.

Held still: a simulated object store that answers after a fixed time (20 ms) with 16 KiB, for any number of requests.
Waiting takes no CPU, as with a real store. Batches of 64.

How to read it: `x torch` compares at the same number of workers, `x torch's best` with torch's best number of workers
in this run. The most that one request at a time can reach is workers / 20 ms. A real store reaches its own limits
first.

    python -m benchmarks.w10_async
    python -m benchmarks.w10_async --latency-ms 5 --workers 1 8 64
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import flags, workloads
from feedline.tools.measure import harness, rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__,
        engine=["process", "thread"],
        seconds=1.5,
        warmup=2,
        workers=[1, 4, 16],
        batch_size=64,
        sample_bytes=16384,
        samples=100_000,
    )
    parser.add_argument("--latency-ms", type=float, default=20.0)
    arguments = parser.parse_args(argv)
    store = (arguments.samples, arguments.latency_ms / 1e3, arguments.sample_bytes)
    one_by_one, at_once = workloads.Remote(*store), workloads.AsyncRemote(*store)
    entries = list(rows.loaders(arguments, {}, lambda side: one_by_one if side.library == harness.TORCH else at_once))
    rows.publish("w10_async", rows.measure(entries, arguments), arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
