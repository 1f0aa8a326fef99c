"""Question: what does an order of indices cost before the first batch, and after?

Knob: the number of samples, from a million to a billion, and the sampler: `RandomSampler`, `DistributedSampler` (rank
3 of 8) and `WeightedRandomSampler` (with replacement, as many draws as weights).

Held still: the sampler is iterated over from Python, one integer at a time, as torch's loader does. Every measurement
is a fresh program. torch's samplers hold a list of all indices, about 48 bytes each: above `--torch-max` they are not
run. torch draws from 2**24 weights at most.

How to read it: `first` is milliseconds from constructing the sampler to its 64th index, `next` those to the 64th index
of the next epoch. `indices/s` counts from `iter()` on, over a whole epoch for torch (whose work comes first) and over
at most `--count` indices for feedline (whose work is the same all along). `in blocks` is the rate at which feedline's
own loader gets them, as arrays. `memory` is how far the program's resident memory rose above what it was before
the sampler, at its highest; weights themselves are not counted. Ratios are round by round; above 1 is better.

    python -m benchmarks.w5_index_space
    python -m benchmarks.w5_index_space --sampler random --sizes 1e6 1e7 --json w5.jsonl
    python -m benchmarks.w5_index_space --quick
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from rich.table import Table

from benchmarks import harness, machine, program, rows

SAMPLERS = ("random", "distributed", "weighted")
SIZES = (10**6, 10**7, 10**8, 10**9)
WEIGHTS = (10**6, 10**7, 16 * 10**6, 10**8)
TORCH_BYTES = 48
"""What torch's samplers hold for each index: 8 bytes in the permutation, 8 in a list, 32 for the integer itself."""
TORCH_WEIGHTS = 1 << 24

COLUMNS = (
    rows.Column("first_ms", "first\nms", digits=2, with_range=True),
    rows.Column("next_ms", "next\nms", digits=2),
    rows.Column("indices_per_s", "million\nindices/s", scale=1e-6, digits=1),
    rows.Column("block_indices_per_s", "million/s\nin blocks", scale=1e-6, digits=1),
    rows.Column("memory_mb", "memory\nMB", digits=1),
)
RATIOS = {"first_ms": "x\nfirst", "indices_per_s": "x\nrate", "memory_mb": "x\nmemory"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=None, engine=[])
    parser.set_defaults(rounds=3)  # torch's programs take long, and differ by orders of magnitude
    parser.add_argument("--sampler", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    parser.add_argument("--sizes", nargs="+", type=_size, default=list(SIZES), help="samples (1e6 1e7 1e8 1e9)")
    parser.add_argument("--weights", nargs="+", type=_size, default=list(WEIGHTS), help="weights (1e6 1e7 1.6e7 1e8)")
    parser.add_argument("--torch-max", type=_size, default=10**8, help="largest size that torch is run with (1e8)")
    parser.add_argument("--count", type=_size, default=10**7, help="indices over which feedline is timed (1e7)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: see that it runs")
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.sizes, arguments.weights, arguments.count = [20_000], [20_000], 20_000
    outcomes = measure(arguments)
    comparisons = [compare(outcome, outcomes) for outcome in outcomes]
    rows.write_rows("w5_index_space", outcomes, comparisons, arguments)
    if arguments.json != "-":
        show(outcomes, comparisons, arguments)
    return 0


def cases(arguments: argparse.Namespace) -> list[harness.Case]:
    return [
        {"sampler": sampler, "size": size}
        for sampler in arguments.sampler
        for size in (arguments.weights if sampler == "weighted" else arguments.sizes)
    ]


def why_not_torch(case: harness.Case, arguments: argparse.Namespace) -> str | None:
    """Say why torch's sampler is not run, or None."""
    size = int(case["size"])
    if case["sampler"] == "weighted" and size > TORCH_WEIGHTS:
        return f"not run: torch takes up to {TORCH_WEIGHTS:,} weights"
    if size > arguments.torch_max:
        return f"not run: would need ~{size * TORCH_BYTES / 1e9:,.0f} GB"
    return None


def measure(arguments: argparse.Namespace) -> list[harness.Outcome]:
    outcomes = [
        harness.Outcome(case, side)
        for case in cases(arguments)
        for side in (harness.Side(harness.TORCH), harness.Side(harness.FEEDLINE))
        if side.library == harness.FEEDLINE or why_not_torch(case, arguments) is None
    ]
    settings = rows.settings(arguments)
    with rows.progress(len(outcomes) * settings.rounds) as step:
        for number in range(settings.rounds):
            for outcome in outcomes:
                step(f"round {number + 1} of {settings.rounds}: {outcome.side.name} {outcome.case}")
                outcome.rounds.append(harness.undisturbed(partial(one_program, outcome, arguments), settings))
    return outcomes


def one_program(outcome: harness.Outcome, arguments: argparse.Namespace) -> harness.Figures:
    before = machine.load_of_others()
    figures = program.run("benchmarks.index_program", outcome.side, {**outcome.case, "count": arguments.count})
    after = machine.load_of_others()
    return {**figures, "other_cores": None if before is None or after is None else max(before, after)}


def compare(outcome: harness.Outcome, outcomes: Sequence[harness.Outcome]) -> dict[str, harness.Spread | None]:
    base = harness.torch_at_same_case(outcome, outcomes)
    if base is None or base is outcome:
        return dict.fromkeys(RATIOS)
    return {
        figure: harness.ratio(outcome, base, figure, lower_is_better=figure != "indices_per_s") for figure in RATIOS
    }


def show(
    outcomes: Sequence[harness.Outcome],
    comparisons: Sequence[dict[str, harness.Spread | None]],
    arguments: argparse.Namespace,
) -> None:
    table = Table(title=f"w5_index_space: median of {arguments.rounds} programs \\[lowest..highest]")
    for title in ("sampler", "size", "library"):
        table.add_column(title, no_wrap=True)
    for title in (*(column.title for column in COLUMNS), *RATIOS.values(), "note"):
        table.add_column(title, justify="right", no_wrap=True)
    for outcome, found in zip(outcomes, comparisons, strict=True):
        names = (str(outcome.case["sampler"]), f"{outcome.case['size']:,}")
        if (reason := why_not_torch(outcome.case, arguments)) is not None:
            table.add_row(*names, harness.TORCH, *[""] * (len(COLUMNS) + len(RATIOS)), reason)
        cells = (rows.cell(harness.spread(outcome, column.figure), column) for column in COLUMNS)
        ratios = (rows.times(found[figure]) for figure in RATIOS)
        last = outcome.side.library == harness.FEEDLINE
        table.add_row(*names, outcome.side.name, *cells, *ratios, rows.note(outcome), end_section=last)
    rows.show(table)


def _size(text: str) -> int:
    return int(float(text))


if __name__ == "__main__":
    sys.exit(main())
