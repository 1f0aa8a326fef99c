"""Question: how much memory does a program retain that keeps little, or needed much for a moment?

Knob: what the program does. It keeps the labels of every batch; every tenth batch; one of two large tensors of each. A
sample needs much memory once while it is made; a few batches are large and the others are not. Four loaders are closed
while a label, or a large tensor, of each is kept. The program forks in each of 16 steps while it has a batch.

Held still: 5 MB images, batches of four, two workers (and none), one epoch, a fresh program for every measurement.
Memory is the summed PSS of parent and workers, in which a shared page counts once, without mapped files, above that of
the program before it opens its loader. Two programs run at once: none sees memory of the other.

How to read it, in MB: `held` is what the program itself still has, `window` the batches that may be in flight.
`running` is read with the last batch, `end` after half a second without work, `peak` is the highest reading between two
batches. Each worker comes with some 10 MB. Beyond that, nobody needs more than `held` and `window`; what `end` has
above them is retained. `above torch` is the difference of `end` to torch's loader: below 0 is better. torch's own heap
may be of another kind from system to system (mimalloc on ARM), and hold on to large batches for a while or for good.

    python -m benchmarks.w12_retention
    python -m benchmarks.w12_retention --case "keep labels" --batches 150
    python -m benchmarks.w12_retention --case "spike in samples" --spike-mb 1500 --json w12.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.table import Table

from benchmarks import harness, program, rows
from benchmarks.retention_program import CASES

COLUMNS = (
    rows.Column("held", "held\nMB"),
    rows.Column("window", "window\nMB"),
    rows.Column("running", "running\nMB", with_range=True),
    rows.Column("end", "end\nMB", with_range=True),
    rows.Column("peak", "peak\nMB"),
    rows.Column("above_torch", "above\ntorch", with_range=True),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=None, engine=["process", "thread"])
    parser.set_defaults(rounds=1)  # memory varies far less than time, and there are many programs to run
    parser.add_argument("--case", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--batches", type=int, default=60, help="in an epoch (60)")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--image-mb", type=float, default=5.0, help="megabytes of one image (5)")
    parser.add_argument("--spike-mb", type=float, default=300.0, help="megabytes that are needed for a moment (300)")
    parser.add_argument("--idle-s", type=float, default=0.5, help="seconds without work before the last reading (0.5)")
    parser.add_argument("--at-once", type=int, default=2, help="programs that run at the same time (2)")
    arguments = parser.parse_args(argv)
    outcomes = measure(arguments)
    comparisons = [compare(outcome, outcomes) for outcome in outcomes]
    rows.write_rows("w12_retention", outcomes, comparisons, arguments)
    if arguments.json != "-":
        show(outcomes, comparisons, arguments)
    return 0


def measure(arguments: argparse.Namespace) -> list[harness.Outcome]:
    outcomes = [
        harness.Outcome({"program": case, "workers": workers}, side)
        for case in arguments.case
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]
    with rows.progress(len(outcomes) * arguments.rounds) as step, ThreadPoolExecutor(arguments.at_once) as pool:
        for number in range(arguments.rounds):
            measured = pool.map(lambda outcome: one_program(outcome, arguments), outcomes)
            for outcome, figures in zip(outcomes, measured, strict=True):
                step(f"round {number + 1} of {arguments.rounds}: {outcome.side.name} {outcome.case}")
                outcome.rounds.append(figures)
    for outcome in outcomes:
        base = harness.torch_at_same_case(outcome, outcomes)
        assert base is not None
        for ours, theirs in zip(outcome.rounds, base.rounds, strict=True):
            ours["above_torch"] = (ours["end"] or 0.0) - (theirs["end"] or 0.0)
    return outcomes


def one_program(outcome: harness.Outcome, arguments: argparse.Namespace) -> harness.Figures:
    return program.run(
        "benchmarks.retention_program",
        outcome.side,
        {
            "case": outcome.case["program"],
            "workers": outcome.case["workers"],
            "batches": arguments.batches,
            "batch-size": arguments.batch_size,
            "image-mb": arguments.image_mb,
            "spike-mb": arguments.spike_mb,
            "idle-s": arguments.idle_s,
        },
    )


def compare(outcome: harness.Outcome, outcomes: Sequence[harness.Outcome]) -> dict[str, harness.Spread | None]:
    """Compare peaks; what is left at the end may be next to nothing, of which there is no ratio."""
    base = harness.torch_at_same_case(outcome, outcomes)
    return {
        "peak": None if base is None or base is outcome else harness.ratio(outcome, base, "peak", lower_is_better=True)
    }


def show(
    outcomes: Sequence[harness.Outcome],
    comparisons: Sequence[dict[str, harness.Spread | None]],
    arguments: argparse.Namespace,
) -> None:
    table = Table(title=f"w12_retention: summed PSS, median of {arguments.rounds} rounds \\[lowest..highest]")
    for title in ("program", "workers", "loader"):
        table.add_column(title, no_wrap=True)
    for column in COLUMNS:
        table.add_column(column.title, justify="right", no_wrap=True)
    table.add_column("peak\nx torch", justify="right", no_wrap=True)
    for outcome, found in zip(outcomes, comparisons, strict=True):
        is_torch = outcome.side.library == harness.TORCH
        cells = [
            "" if is_torch and column.figure == "above_torch" else _cell(outcome, column, arguments.rounds)
            for column in COLUMNS
        ]
        last = not any(other.case == outcome.case for other in outcomes[outcomes.index(outcome) + 1 :])
        table.add_row(
            *(str(value) for value in outcome.case.values()),
            outcome.side.name,
            *cells,
            rows.times(found["peak"]),
            end_section=last,
        )
    rows.show(table)


def _cell(outcome: harness.Outcome, column: rows.Column, rounds: int) -> str:
    """Format a figure; of a single round there is no range."""
    plain = rows.Column(column.figure, column.title)
    return rows.cell(harness.spread(outcome, column.figure), column if rounds > 1 else plain)


if __name__ == "__main__":
    sys.exit(main())
