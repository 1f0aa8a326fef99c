"""Question: what does one batch cost the training loop when the dataset costs nothing?

Knob: the number of workers and the batch size.

Held still: a dataset that returns 0, no shuffling, a consumer that touches the one small tensor per batch.

How to read it: `us/batch` is wall time per batch, so with workers it shows how fast batches can be handed over.
`consumer CPU` is what the training loop's own thread spends on one batch, and `parent CPU` what its whole process
spends (other threads of the loader included): time taken from the training step. Lower is better for all three; `x
torch` compares batches per second.

    python -m benchmarks.overhead
    python -m benchmarks.overhead --batch-size 1 --workers 0 2 4 --json overhead.jsonl
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import flags, workloads
from feedline.tools.measure import harness, rows

COLUMNS = (
    rows.RATE,
    rows.Column("batch_us", "us/batch", digits=1),
    rows.Column("consumer_cpu_us", "consumer\nCPU us", digits=1),
    rows.Column("parent_cpu_us", "parent\nCPU us", digits=1),
    rows.Column("cpu_us", "all CPU\nus", digits=1),
    rows.Column("wait_p50_us", "wait us\np50", digits=1),
    rows.Column("wait_p99_us", "\np99", digits=1),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__,
        engine=["process", "thread"],
        seconds=1.0,
        warmup=32,
        workers=[0, 1, 2],
        batch_size=[1, 64],
        batches=1_000_000,
    )
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    for size in arguments.batch_size:
        dataset = workloads.Nothing(arguments.batches * size)
        entries += rows.loaders(arguments, {"batch size": size}, rows.same(dataset), batch_size=size)
    outcomes = rows.measure(entries, arguments)
    for outcome in outcomes:
        for figures in outcome.rounds:
            figures["batch_us"] = 1e6 / (figures["batches_per_s"] or 1.0)
            figures["cpu_us"] = (figures["cpu_s_per_1000"] or 0.0) * 1e3 * int(outcome.case["batch size"])
    rows.publish("overhead", outcomes, arguments, columns=COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
