"""Question: when one sample in a hundred is slow, how much of the workers' time is lost to keeping batches in order?

Knob: the number of workers and feedline's engine; `--unordered` lets batches come as they finish. `--seed` gives
feedline's loader a seed: then work moves from a late worker process to an idle one. Without a seed each process keeps
its share and its window, as in torch's loader, because the workers live on after the epoch; threads share all work in
any case.

Held still: samples sleep 1 ms, and a fixed 1 % of them, chosen by index, 200 ms; batches of 16, four workers, no
shuffling: every loader meets the same slow samples at the same places. Sleeping takes no CPU, so the number of cores
does not matter.

How to read it: `of ideal` is the time that the counted samples sleep, divided by the number of workers, as a share of
the elapsed time. 100 % would mean that no worker ever waited for another one. Counting starts and stops in mid-epoch,
so a single measurement may be off by a slow sample or two; the spread over the rounds shows it.

    python -m benchmarks.w6_stragglers
    python -m benchmarks.w6_stragglers --seed 1
    python -m benchmarks.w6_stragglers --engine thread --workers 4 16
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks import flags, workloads
from feedline.tools.measure import harness, rows

COLUMNS = (
    rows.RATE,
    rows.Column("share_of_ideal", "of ideal %", scale=100, digits=1, with_range=True),
    *rows.COSTS,
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(
        __doc__, engine=["process", "thread"], seconds=0.0, warmup=16, workers=[4], batches=200, batch_size=16
    )
    parser.add_argument("--usual-ms", type=float, default=1.0)
    parser.add_argument("--slow-ms", type=float, default=200.0)
    parser.add_argument("--slow-share", type=float, default=0.01)
    parser.add_argument("--prefetch", type=int, help="prefetch_factor of both loaders; torch's default if unset")
    parser.add_argument("--seed", type=int, help="seed= of feedline's loader; none if unset")
    parser.add_argument("--unordered", action="store_true", help="in_order=False for both loaders")
    arguments = parser.parse_args(argv)
    # One length for all worker counts, so that the slow samples are the same ones.
    margin = rows.span(arguments).margin(max(arguments.workers), arguments.prefetch)
    dataset = workloads.Stragglers(
        (arguments.batches + 2 * margin + 1) * arguments.batch_size,
        usual_s=arguments.usual_ms / 1e3,
        slow_s=arguments.slow_ms / 1e3,
        slow_share=arguments.slow_share,
    )
    arguments.counted_batches = arguments.batches
    case: harness.Case = {"order": "as finished" if arguments.unordered else "in order"}
    ways = rows.both(dataset, dataset, in_order=not arguments.unordered)
    if arguments.seed is not None:
        ours = {"in_order": not arguments.unordered, "seed": arguments.seed}
        ways["feedline"] = lambda loading: loading.open(dataset, **ours)
    outcomes = rows.measure(list(rows.entries(arguments, case, ways)), arguments)
    for outcome in outcomes:
        for figures in outcome.rounds:
            figures["share_of_ideal"] = share_of_ideal(
                figures, dataset, arguments.batch_size, int(outcome.case["workers"])
            )
    rows.publish("w6_stragglers", outcomes, arguments, columns=COLUMNS)
    return 0


def share_of_ideal(
    figures: harness.Figures, dataset: workloads.Stragglers, batch_size: int, worker_count: int
) -> float:
    """Tell which share of the time the workers' own sleep would have needed."""
    first, count = int(figures["first_batch"] or 0), int(figures["batches"] or 0)
    counted = range(first * batch_size, (first + count) * batch_size)
    asleep = sum(dataset.sleep_s(index) for index in counted)
    return asleep / max(1, worker_count) / (figures["seconds"] or 1.0)


if __name__ == "__main__":
    sys.exit(main())
