"""What a benchmark says: its common flags, rows as JSON lines, and a table for people.

The file of `--json` holds one object per line. `kind` is `machine` (once, first), `round` (one measurement) or
`summary` (one configuration over all rounds, with its ratios to torch's loader).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from benchmarks import machine
from benchmarks.harness import (
    TORCH,
    Entry,
    Outcome,
    Settings,
    Span,
    Spread,
    own_inline,
    ratio,
    run_rounds,
    spread,
    torch_at_its_best,
    torch_at_same_case,
)

ENGINES = ("auto", "process", "thread")
START_METHODS = ("fork", "forkserver", "spawn")


def flags(doc: str | None, *, seconds: float | None, warmup: int = 8, engine: Sequence[str]) -> argparse.ArgumentParser:
    """Make a parser with the flags every benchmark has; `doc` is the script's own docstring."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds over all configurations (5)")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of a measurement that others disturbed (3)")
    parser.add_argument(
        "--max-other-cores", type=float, default=0.1, help="load of other programs that disturbs, in cores (0.1)"
    )
    parser.add_argument(
        "--engine", nargs="+", choices=ENGINES, default=list(engine), help="feedline's engine or engines"
    )
    parser.add_argument("--json", metavar="FILE", help="write rows as JSON lines to FILE, or to standard output with -")
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help=f"counted seconds per round ({seconds})")
        parser.add_argument(
            "--warmup",
            type=int,
            default=warmup,
            help=f"batches left out at both ends of an epoch, or twice the prefetched ones if more ({warmup})",
        )
    return parser


def settings(arguments: argparse.Namespace) -> Settings:
    """Read the harness's settings from the common flags."""
    return Settings(arguments.rounds, arguments.repeats, arguments.max_other_cores)


def span(arguments: argparse.Namespace, *, batches: int = 1) -> Span:
    """Read what one measurement counts from the common flags."""
    return Span(arguments.seconds, batches=batches, warmup=arguments.warmup)


def measure_entries(entries: Sequence[Entry], arguments: argparse.Namespace, *, batches: int = 1) -> list[Outcome]:
    """Run all rounds under a progress bar."""
    chosen = settings(arguments)
    with progress(len(entries) * (chosen.rounds + 1)) as step:
        return run_rounds(entries, span(arguments, batches=batches), chosen, step=step)


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on a terminal; it is drawn only between measurements, never by a thread beside them."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(
        *columns, console=console, transient=True, auto_refresh=False, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=total)
        begun = False

        def step(what: str) -> None:
            nonlocal begun
            bar.update(task, description=what, advance=1 if begun else 0, refresh=True)
            begun = True

        yield step


@dataclass(frozen=True)
class Column:
    """One figure in the table."""

    figure: str
    title: str
    scale: float = 1.0
    digits: int = 0
    with_range: bool = False


RATE = Column("batches_per_s", "batches/s", with_range=True)
COSTS = (
    Column("cpu_s_per_1000", "CPU s\nper 1,000", digits=4),
    Column("consumer_cpu_us", "consumer\nCPU us"),
    Column("wait_p50_us", "wait us\np50"),
    Column("wait_p99_us", "\np99"),
)


def publish(
    name: str, outcomes: Sequence[Outcome], arguments: argparse.Namespace, *, columns: Sequence[Column] = (RATE, *COSTS)
) -> None:
    """Write rows and show the table of a throughput benchmark; the first column is the one compared."""
    figure = columns[0].figure
    comparisons = [compare(outcome, outcomes, figure) for outcome in outcomes]
    write_rows(name, outcomes, comparisons, arguments)
    if arguments.json == "-":
        return
    table = Table(title=f"{name}: median of {arguments.rounds} interleaved rounds \\[lowest..highest]")
    for title in [*outcomes[0].case, "loader", *(column.title for column in columns)]:
        table.add_column(title, justify="left" if title == "loader" else "right", no_wrap=True)
    for title in ("x torch", "x torch's\nbest", "x own\ninline", "peak PSS\nMB", "note"):
        table.add_column(title, justify="right", no_wrap=True)
    for outcome, found in zip(outcomes, comparisons, strict=True):
        table.add_row(
            *(str(value) for value in outcome.case.values()),
            outcome.side.name,
            *(cell(spread(outcome, column.figure), column) for column in columns),
            times(found["torch"], with_range=True),
            times(found["torch_best"]),
            times(found["own_inline"]),
            "" if outcome.peak_pss_mb is None else f"{outcome.peak_pss_mb:,.0f}",
            note(outcome),
            end_section=_last_of_case(outcome, outcomes),
        )
    show(table)


def compare(outcome: Outcome, outcomes: Sequence[Outcome], figure: str) -> dict[str, Spread | None]:
    """Compare an outcome with torch in the same case, torch's best case, and its own library without workers."""
    bases = {
        "torch": None if outcome.side.library == TORCH else torch_at_same_case(outcome, outcomes),
        "torch_best": torch_at_its_best(outcome, outcomes, figure),
        "own_inline": own_inline(outcome, outcomes),
    }
    return {
        name: None if base is None or base is outcome else ratio(outcome, base, figure) for name, base in bases.items()
    }


def write_rows(
    name: str,
    outcomes: Sequence[Outcome],
    comparisons: Sequence[dict[str, Spread | None]],
    arguments: argparse.Namespace,
) -> None:
    """Write the machine, every round and every summary, if `--json` was given."""
    if arguments.json is None:
        return
    with _opened(arguments.json) as file:
        # Where the rows go is not part of the question, and a path may name a person.
        asked = {flag: value for flag, value in vars(arguments).items() if flag not in ("json", "data")}
        _write(file, {"kind": "machine", "benchmark": name, "flags": asked, **machine.describe()})
        for outcome, found in zip(outcomes, comparisons, strict=True):
            known = {"benchmark": name, "case": outcome.case, "side": outcome.side.name}
            for number, figures in enumerate(outcome.rounds):
                _write(file, {"kind": "round", **known, "round": number, **figures})
            _write(
                file,
                {
                    "kind": "summary",
                    **known,
                    "rounds": len(outcome.rounds),
                    "disturbed_rounds": outcome.disturbed_count,
                    "peak_pss_mb": outcome.peak_pss_mb,
                    "figures": {figure: _plain(spread(outcome, figure)) for figure in outcome.rounds[0]},
                    "ratios": {base: _plain(value) for base, value in found.items()},
                },
            )


def show(table: Table) -> None:
    """Print a table; wide enough for all columns when the output is not a terminal."""
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def cell(found: Spread | None, column: Column) -> str:
    """Format a figure, with its range where the column asks for it."""
    if found is None:
        return ""
    median, low, high = (f"{v * column.scale:,.{column.digits}f}" for v in (found.median, found.low, found.high))
    return f"{median} \\[{low}..{high}]" if column.with_range else median


def times(found: Spread | None, *, with_range: bool = False) -> str:
    """Format a ratio."""
    return cell(found, Column("", "", digits=2, with_range=with_range))


def note(outcome: Outcome) -> str:
    """Say how many rounds were disturbed, if any."""
    count = outcome.disturbed_count
    return f"{count} of {len(outcome.rounds)} disturbed" if count else ""


@contextmanager
def _opened(path: str) -> Iterator[TextIO]:
    if path == "-":
        yield sys.stdout
        return
    with Path(path).open("w", encoding="utf-8") as file:
        yield file


def _write(file: TextIO, row: dict[str, object]) -> None:
    file.write(json.dumps(row) + "\n")


def _plain(found: Spread | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _last_of_case(outcome: Outcome, outcomes: Sequence[Outcome]) -> bool:
    return [other for other in outcomes if other.case == outcome.case][-1] is outcome
