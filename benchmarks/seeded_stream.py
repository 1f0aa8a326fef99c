"""Question: what does `seed=` cost an iterable dataset that draws no random numbers?

Knob: whether the loader has a seed, and what `__iter__` is. A generator function might draw at any sample, so the
process's random generators are seeded for each sample. The iterator of a range cannot draw.

Held still: an iterable dataset of integers, no workers, batches of 64; the consumer touches the one small tensor.

How to read it: `of unseeded` is samples per second as a share of the loader without a seed in the same round: 1.00
costs nothing. Torch's loader, which has no `seed=`, is measured beside it.

    python -m benchmarks.seeded_stream
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from benchmarks import flags, workloads
from feedline.tools.measure import harness, rows

COLUMNS = (
    rows.Column("samples_per_s", "samples/s", with_range=True, better="higher"),
    rows.Column("of_unseeded", "of unseeded", digits=3, with_range=True),
    rows.CONSUMER,
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, seconds=1.0, warmup=32, samples=10_000_000, batch_size=64)
    arguments = parser.parse_args(argv)
    size = arguments.batch_size
    torch, ours = harness.sides(0, ())
    entries = []
    for name, kind in {"generator": workloads.Integers, "range": workloads.PlainIntegers}.items():
        stream = kind(arguments.samples)
        opened = {
            (torch, "none"): partial(torch.open, stream, batch_size=size),
            (ours, "none"): partial(ours.open, stream, batch_size=size),
            (ours, "1"): partial(ours.open, stream, batch_size=size, seed=1),
        }
        for (side, seed), make in opened.items():
            entries.append(rows.steady({"iterator": name, "seed": seed}, side, make, arguments, batch_size=size))
    outcomes = rows.measure(entries, arguments)
    for first in range(0, len(outcomes), 3):
        for outcome in outcomes[first + 1 : first + 3]:
            harness.add_share(outcome, outcomes[first + 1], "samples_per_s", "of_unseeded")
    rows.publish("seeded_stream", outcomes, arguments, columns=COLUMNS, details=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
