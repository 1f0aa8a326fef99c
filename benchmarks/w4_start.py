"""Question: how long does a training loop wait for its first batch?

Knob: the start method (fork, forkserver, spawn) and the number of workers.

Held still: a dataset holding 1 GB of NumPy arrays whose samples are cheap, batches of 16, 32 batches per epoch. Every
measurement is a fresh program that has torch loaded, because the first loader of a program pays for things that
later ones find done.

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
from collections.abc import Sequence
from functools import partial

from rich.table import Table

from benchmarks import harness, machine, program, rows

FIGURES = {"first": "first", "restart": "restart", "pass": "pass", "later": "later", "restart_kept": "restart, kept"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=None, engine=["process"])
    parser.add_argument("--start-method", nargs="+", choices=rows.START_METHODS, default=list(rows.START_METHODS))
    parser.add_argument("--workers", nargs="+", type=int, default=[2, 4])
    parser.add_argument("--dataset-mb", type=int, default=1024, help="megabytes of arrays the dataset holds (1,024)")
    parser.add_argument("--strings", type=int, default=0, help="path strings the dataset holds besides (none)")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--batches", type=int, default=32, help="batches per epoch (32)")
    arguments = parser.parse_args(argv)
    outcomes = measure(arguments)
    comparisons = [compare(outcome, outcomes) for outcome in outcomes]
    rows.write_rows("w4_start", outcomes, comparisons, arguments)
    if arguments.json != "-":
        show(outcomes, comparisons, arguments)
    return 0


def measure(arguments: argparse.Namespace) -> list[harness.Outcome]:
    outcomes = [
        harness.Outcome({"start method": method, "workers": workers}, side)
        for method in arguments.start_method
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]
    settings = rows.settings(arguments)
    with rows.progress(len(outcomes) * settings.rounds + 1) as step:
        step("a first program, not counted")
        one_program(outcomes[-1], arguments)
        for number in range(settings.rounds):
            for outcome in outcomes:
                step(f"round {number + 1} of {settings.rounds}: {outcome.side.name} {outcome.case}")
                outcome.rounds.append(harness.undisturbed(partial(one_program, outcome, arguments), settings))
    return outcomes


def one_program(outcome: harness.Outcome, arguments: argparse.Namespace) -> harness.Figures:
    """Run one program. Workers end inside it, uncounted, so the load of others is read just before and after."""
    before = machine.load_of_others()
    figures = program.run(
        "benchmarks.start_program",
        outcome.side,
        {
            "start-method": outcome.case["start method"],
            "workers": outcome.case["workers"],
            "batch-size": arguments.batch_size,
            "batches": arguments.batches,
            "dataset-mb": arguments.dataset_mb,
            "strings": arguments.strings,
        },
    )
    after = machine.load_of_others()
    return {**figures, "other_cores": None if before is None or after is None else max(before, after)}


def compare(outcome: harness.Outcome, outcomes: Sequence[harness.Outcome]) -> dict[str, harness.Spread | None]:
    base = harness.torch_at_same_case(outcome, outcomes)
    if base is None or base is outcome:
        return dict.fromkeys(FIGURES)
    return {figure: harness.ratio(outcome, base, figure, lower_is_better=True) for figure in FIGURES}


def show(
    outcomes: Sequence[harness.Outcome],
    comparisons: Sequence[dict[str, harness.Spread | None]],
    arguments: argparse.Namespace,
) -> None:
    table = Table(
        title=f"w4_start: ms to the first batch, median of {arguments.rounds} rounds \\[lowest..highest], x torch"
    )
    for title in ("start method", "workers", "loader"):
        table.add_column(title, no_wrap=True)
    for title in FIGURES.values():
        table.add_column(title, justify="right", no_wrap=True)
        table.add_column("x torch", justify="right", no_wrap=True)
    table.add_column("note")
    for outcome, found in zip(outcomes, comparisons, strict=True):
        cells: list[str] = []
        for figure, title in FIGURES.items():
            column = rows.Column(figure, title, with_range=True)
            cells += [rows.cell(harness.spread(outcome, figure), column), rows.times(found[figure])]
        table.add_row(*(str(value) for value in outcome.case.values()), outcome.side.name, *cells, rows.note(outcome))
    rows.show(table)


if __name__ == "__main__":
    sys.exit(main())
