"""Question: how much memory do workers add, at the start and while they run?

Knob: what the dataset holds: 1 GB of NumPy arrays, or with `--strings` a Python list of five million path strings, and
besides what `feedline.share` makes of this list; and the start method.

Held still: four workers, half an epoch in shuffled order, a fresh program for every measurement. Memory is the summed
PSS of parent and workers, in which a shared page counts once.

How to read it, in MB: `started` is what stands above the dataset alone after the first batches, `growth` what came on
top by the end of the half epoch. Reading a Python object writes its reference count, so forked workers unshare lists
page by page as they go: that is the growth. Arrays do not grow; with spawn and forkserver their cost is in `started`:
one copy for each worker, unless the loader shares them. A growth of a few MB either way is the allocator at work.
What `feedline.share` makes of a list is arrays. `dataset` is the whole program with the dataset and torch loaded.

    python -m benchmarks.w7_memory
    python -m benchmarks.w7_memory --strings
    python -m benchmarks.w7_memory --start-method forkserver --json w7.jsonl
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.table import Table

from benchmarks import harness, program, rows

COLUMNS = (
    rows.Column("dataset", "dataset\nMB"),
    rows.Column("started", "started\nMB", with_range=True),
    rows.Column("growth", "growth\nMB", digits=1, with_range=True),
    rows.Column("peak", "peak\nMB"),
    rows.Column("seconds", "s", digits=1),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=None, engine=["process"])
    parser.set_defaults(rounds=3)  # memory varies far less than time
    parser.add_argument("--workers", nargs="+", type=int, default=[4])
    parser.add_argument("--start-method", nargs="+", choices=rows.START_METHODS, default=["fork"])
    parser.add_argument("--strings", action="store_true", help="the dataset holds a list of strings instead of arrays")
    parser.add_argument("--dataset-mb", type=int, default=1024, help="megabytes of arrays (1,024)")
    parser.add_argument("--string-count", type=int, default=5_000_000, help="strings in the list (5,000,000)")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.5, help="of an epoch to run (0.5)")
    arguments = parser.parse_args(argv)
    outcomes = measure(arguments)
    comparisons = [compare(outcome, outcomes) for outcome in outcomes]
    rows.write_rows("w7_memory", outcomes, comparisons, arguments)
    if arguments.json != "-":
        show(outcomes, arguments)
    return 0


def measure(arguments: argparse.Namespace) -> list[harness.Outcome]:
    outcomes = [
        harness.Outcome({"holds": holds, "start method": method, "workers": workers}, side)
        for holds in (("strings", "shared") if arguments.strings else ("arrays",))
        for method in arguments.start_method
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]
    with rows.progress(len(outcomes) * arguments.rounds) as step:
        for number in range(arguments.rounds):
            for outcome in outcomes:
                step(f"round {number + 1} of {arguments.rounds}: {outcome.side.name} {outcome.case}")
                outcome.rounds.append(one_program(outcome, arguments))
    return outcomes


def one_program(outcome: harness.Outcome, arguments: argparse.Namespace) -> harness.Figures:
    return program.run(
        "benchmarks.memory_program",
        outcome.side,
        {
            "holds": outcome.case["holds"],
            "size": arguments.string_count if arguments.strings else arguments.dataset_mb,
            "workers": outcome.case["workers"],
            "start-method": outcome.case["start method"],
            "batch-size": arguments.batch_size,
            "share": arguments.share,
        },
    )


def compare(outcome: harness.Outcome, outcomes: Sequence[harness.Outcome]) -> dict[str, harness.Spread | None]:
    """Compare peaks; growth may be nothing or below, of which there is no ratio."""
    base = harness.torch_at_same_case(outcome, outcomes)
    return {
        "peak": None if base is None or base is outcome else harness.ratio(outcome, base, "peak", lower_is_better=True)
    }


def show(outcomes: Sequence[harness.Outcome], arguments: argparse.Namespace) -> None:
    table = Table(title=f"w7_memory: summed PSS, median of {arguments.rounds} rounds \\[lowest..highest]")
    for title in ("holds", "start method", "workers", "loader"):
        table.add_column(title, no_wrap=True)
    for column in COLUMNS:
        table.add_column(column.title, justify="right", no_wrap=True)
    for outcome in outcomes:
        cells = (rows.cell(harness.spread(outcome, column.figure), column) for column in COLUMNS)
        table.add_row(*(str(value) for value in outcome.case.values()), outcome.side.name, *cells)
    rows.show(table)


if __name__ == "__main__":
    sys.exit(main())
