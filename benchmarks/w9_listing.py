"""Question: what does it cost to list an image folder, in time and memory, before training can start?

Knob: the number of files, 20,000 or with `--full` a million, in a thousand directories at most.

Held still: empty files, made in a temporary folder and removed afterwards; names like those of ImageNet. Every
measurement is a fresh program that lists the folder once. `torch` stands for what torchvision's `ImageFolder` does,
`sorted(os.walk(...))` into a list of tuples, written out here. `feedline` is `ImageFolder` that lists the folder and
keeps the listing in a cache, `feedline/cache` the same when it finds the listing of an earlier program there.

How to read it: `seconds` until paths and labels are there; `held` what the program keeps for them, in MB; `bytes` the
same for each file; `peak` the most it had meanwhile. A list grows again in every worker that reads it, as `w7_memory`
shows; what feedline keeps does not. The directories are in the memory of the system: on a network file system
waiting takes far longer than anything measured here, and there threads help.

    python -m benchmarks.w9_listing
    python -m benchmarks.w9_listing --full
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.table import Table

from benchmarks import harness, program, rows

COLUMNS = (
    rows.Column("seconds", "s", digits=3, with_range=True),
    rows.Column("held", "held\nMB", digits=1, with_range=True),
    rows.Column("bytes", "bytes\nper file", digits=1),
    rows.Column("peak", "peak\nMB", digits=1),
)
LONG_AGO_NS = 1_600_000_000_000_000_000
SIDES = (harness.Side(harness.TORCH), harness.Side(harness.FEEDLINE), harness.Side(harness.FEEDLINE, "cache"))


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=None, engine=[])
    parser.add_argument("--files", type=int, default=20_000, help="files in the folder (20,000)")
    parser.add_argument("--full", action="store_true", help="a million files")
    parser.add_argument("--data", type=Path, help="folder to make the files in; the temporary folder if unset")
    arguments = parser.parse_args(argv)
    if arguments.full:
        arguments.files = 1_000_000
    with tempfile.TemporaryDirectory(prefix="feedline-listing-", dir=arguments.data) as folder:
        outcomes = measure(Path(folder), arguments)
    comparisons = [compare(outcome, outcomes) for outcome in outcomes]
    rows.write_rows("w9_listing", outcomes, comparisons, arguments)
    if arguments.json != "-":
        show(outcomes, comparisons, arguments)
    return 0


def measure(folder: Path, arguments: argparse.Namespace) -> list[harness.Outcome]:
    outcomes = [harness.Outcome({"files": arguments.files}, side) for side in SIDES]
    settings = rows.settings(arguments)
    with rows.progress(len(outcomes) * (settings.rounds + 1) + 1) as step:
        step(f"making {arguments.files} files")
        make_files(folder / "root", arguments.files)
        for outcome in outcomes:
            step(f"a first program, not counted: {outcome.side.name}")
            one_program(outcome, folder)
        for number in range(settings.rounds):
            for outcome in outcomes if number % 2 == 0 else outcomes[::-1]:
                step(f"round {number + 1} of {settings.rounds}: {outcome.side.name}")
                outcome.rounds.append(harness.undisturbed(partial(one_program, outcome, folder), settings))
    return outcomes


def make_files(root: Path, count: int) -> None:
    """Make empty files in directories, which seem to have been there for long."""
    directories = min(1000, max(1, count // 20))
    for number in range(directories):
        name = f"n{1_440_764 + 37 * number:08d}"
        (root / name).mkdir(parents=True)
        descriptor = os.open(root / name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for file in range(number, count, directories):
                os.close(os.open(f"{name}_{file}.JPEG", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=descriptor))
        finally:
            os.close(descriptor)
        os.utime(root / name, ns=(LONG_AGO_NS, LONG_AGO_NS))
    os.utime(root, ns=(LONG_AGO_NS, LONG_AGO_NS))


def one_program(outcome: harness.Outcome, folder: Path) -> harness.Figures:
    cache = folder / "cache"
    if outcome.side.engine is None:
        for file in cache.glob("*.listing"):
            file.unlink()
    elif not any(cache.glob("*.listing")):
        program.run("benchmarks.listing_program", outcome.side, {"root": str(folder / "root"), "cache": str(cache)})
    figures = program.run(
        "benchmarks.listing_program", outcome.side, {"root": str(folder / "root"), "cache": str(cache)}
    )
    found = figures["files"]
    if found != outcome.case["files"]:
        raise RuntimeError(f"{outcome.side.name} found {found} of {outcome.case['files']} files")
    return {**figures, "bytes": (figures["held"] or 0.0) * 1e6 / found}


def compare(outcome: harness.Outcome, outcomes: Sequence[harness.Outcome]) -> dict[str, harness.Spread | None]:
    base = harness.torch_at_same_case(outcome, outcomes)
    if base is None or base is outcome:
        return {"seconds": None, "held": None}
    return {figure: harness.ratio(outcome, base, figure, lower_is_better=True) for figure in ("seconds", "held")}


def show(
    outcomes: Sequence[harness.Outcome],
    comparisons: Sequence[dict[str, harness.Spread | None]],
    arguments: argparse.Namespace,
) -> None:
    table = Table(title=f"w9_listing: {arguments.files} files, median of {arguments.rounds} rounds \\[lowest..highest]")
    table.add_column("listed by", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column.title, justify="right", no_wrap=True)
        if column.figure in ("seconds", "held"):
            table.add_column("x torch", justify="right", no_wrap=True)
    table.add_column("note")
    for outcome, found in zip(outcomes, comparisons, strict=True):
        cells: list[str] = []
        for column in COLUMNS:
            cells.append(rows.cell(harness.spread(outcome, column.figure), column))
            if column.figure in ("seconds", "held"):
                cells.append(rows.times(found[column.figure]))
        table.add_row(outcome.side.name, *cells, rows.note(outcome))
    rows.show(table)


if __name__ == "__main__":
    sys.exit(main())
