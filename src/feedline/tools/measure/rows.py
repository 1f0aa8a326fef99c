"""The output of a benchmark: rows as JSON lines, and a table for people.

`--json` writes one object per line. `kind` is `machine` (once, first), `round` (one measurement) or `summary` (one
configuration over all rounds). `ratios` of a summary holds, for each base and compared figure, the spread of the ratios
round by round; above 1 is better. The bases are torch's loader in the same case, torch's best number of workers, and
the same library without workers.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TextIO, TypeVar

from feedline.system.files import make_folder_for
from feedline.system.shown import printable
from feedline.tools.measure import machine
from feedline.tools.measure.harness import (
    FEEDLINE,
    TORCH,
    Case,
    Entry,
    Loading,
    Outcome,
    Settings,
    Side,
    Spread,
    nothing,
    ratio,
    run_rounds,
)
from feedline.tools.measure.steady import Span, Steady, touch
from feedline.tools.screen import Screen, Styled, Table


def span(arguments: argparse.Namespace) -> Span:
    """Return the span of one measurement from the common flags."""
    return Span(arguments.seconds, batches=getattr(arguments, "counted_batches", 1), warmup=arguments.warmup)


Way = TypeVar("Way")
# Any: a loader of any library.
Opened = Callable[[Loading], Any]


# object: datasets, and arguments of torch's DataLoader.
def both(theirs: object, ours: object, **options: object) -> dict[str, Opened]:
    """Return the ways to load a dataset with torch's loader, and one with feedline's."""
    return {
        TORCH: lambda loading: loading.open(theirs, **options),
        FEEDLINE: lambda loading: loading.open(ours, **options),
    }


def sides(arguments: argparse.Namespace, ways: Mapping[str, Way]) -> Iterator[tuple[Side, Way, Loading]]:
    """Yield each way to load with each number of workers and, if it is feedline's, with each engine."""
    start_method, prefetch = (getattr(arguments, name, None) for name in ("start_method", "prefetch"))
    for workers in arguments.workers:
        for name, way in ways.items():
            library, _, remark = name.partition(" ")
            engines: Sequence[str | None] = [None]
            if library == FEEDLINE:
                engines = ["inline"] if workers == 0 else arguments.engine
            for engine in engines:
                side = Side(library, ", ".join(filter(None, (engine, remark))) or None)
                yield side, way, Loading(workers, arguments.batch_size, engine, start_method, prefetch)


def entries(
    arguments: argparse.Namespace,
    case: Case,
    ways: Mapping[str, Opened],
    *,
    length: int | None = None,
    consume: Callable[[object], None] = touch,
    finish: Callable[[], None] = nothing,
) -> Iterator[Entry]:
    """Yield an entry in steady state for each way to load, each number of workers, and each of feedline's engines.

    Args:
        arguments: the flags.
        case: the values that these loaders share, apart from the number of workers.
        ways: how each is opened, by the library and a remark, such as "feedline stream".
        length: batches in an epoch, for loaders that do not know it.
        consume: called with every batch.
        finish: waits for work that `consume` left running.
    """
    for side, way, loading in sides(arguments, ways):
        steady = Steady(partial(way, loading), consume, loading.batch_size, span(arguments), length, finish)
        yield Entry({**case, "workers": loading.workers}, side, steady.measure, steady.peak_pss_mb)


def measure(
    entries: Sequence[Entry], arguments: argparse.Namespace, *, until_s: float = math.inf, quiet: bool = False
) -> list[Outcome]:
    """Run rounds under a progress bar: all of them, or those that end before `until_s`, and at least one.

    With `quiet`, there is no bar: the entries show what they do.
    """
    settings = Settings(arguments.rounds, arguments.max_other_cores)
    with nullcontext(lambda _: None) if quiet else progress(len(entries) * (settings.rounds + 1)) as step:
        outcomes = run_rounds(entries, settings, step=step, until_s=until_s, least=1)
    complete = min((len(outcome.rounds) for outcome in outcomes), default=0)
    for outcome in outcomes:
        del outcome.rounds[complete:]
    return outcomes


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[str], None]]:
    """Show a progress bar on a terminal; its end is open if `total` is None.

    The bar is drawn only between measurements, never by a thread during them.
    """
    screen = Screen(stderr=True)
    with screen.bar(quiet=not screen.is_terminal) as bar:
        bar.begin("", total, done=-1)
        yield lambda what: bar.update(advance=1, note=what)


@dataclass(frozen=True)
class Column:
    """One figure in the table."""

    figure: str
    title: str
    scale: float = 1.0
    digits: int = 0
    with_range: bool = False
    better: Literal["higher", "lower"] | None = None
    """How the figure is compared with other outcomes; None if it is not."""


RATE = Column("batches_per_s", "batches/s", with_range=True, better="higher")
SAMPLES = Column("samples_per_s", "samples/s", with_range=True, better="higher")
CONSUMER = Column("consumer_cpu_us", "consumer\nCPU us")
COSTS = (
    Column("cpu_s_per_1000", "CPU s\nper 1,000", digits=4),
    CONSUMER,
    Column("wait_p50_us", "wait us\np50"),
    Column("wait_p99_us", "\np99"),
)
BEST = "torch_best"
INLINE = "own_inline"
TITLES = {BEST: "x torch's\nbest", INLINE: "x own\ninline"}

Ratios = dict[str, dict[str, Spread]]
"""By base, then by figure."""


def compare(outcome: Outcome, outcomes: Sequence[Outcome], columns: Sequence[Column], *, peer: str = TORCH) -> Ratios:
    """Compare an outcome with the peer in the same case, and with other numbers of workers."""
    compared = [column for column in columns if column.better is not None]
    if not compared:
        return {}
    same = [other for other in outcomes if other.side.library == peer and other.case == outcome.case]
    alike = [other for other in outcomes if _data_of(other.case) == _data_of(outcome.case)]
    rivals = [other for other in alike if other.side.library == peer]
    own = [other for other in alike if other.side.library == outcome.side.library and other.case.get("workers") == 0]
    bases = {peer: same[:1] if outcome.side.library != peer else [], BEST: _best(rivals, compared[0]), INLINE: own[:1]}
    return {
        name: {
            column.figure: found
            for column in compared
            if (found := ratio(outcome, base, column.figure, lower_is_better=column.better == "lower")) is not None
        }
        for name, (base, *_) in ((name, found) for name, found in bases.items() if found)
        if base is not outcome
    }


def _best(rivals: Sequence[Outcome], column: Column) -> list[Outcome]:
    """Return the outcome with the best number of workers; torch is often fastest without any."""
    ranked = [(found.median, other) for other in rivals if (found := other.spread(column.figure)) is not None]
    ranked.sort(key=lambda pair: pair[0], reverse=column.better == "higher")
    return [other for _, other in ranked[:1]]


def publish(
    name: str,
    outcomes: Sequence[Outcome],
    arguments: argparse.Namespace,
    *,
    columns: Sequence[Column] = (RATE, *COSTS),
    peer: str = TORCH,
    details: bool = True,
) -> None:
    """Write rows if `--json` was given, and show the table unless they went to standard output.

    Args:
        name: the name of the benchmark.
        outcomes: the measured outcomes.
        arguments: the flags.
        columns: figures of the table; those with `better` are compared.
        peer: the library that others are compared with.
        details: whether the table compares numbers of workers with each other, and shows peak memory.
    """
    ratios = [compare(outcome, outcomes, columns, peer=peer) for outcome in outcomes]
    if arguments.json is not None:
        stdout = arguments.json == "-"
        if not stdout:
            make_folder_for(Path(arguments.json))
        with nullcontext(sys.stdout) if stdout else Path(arguments.json).open("w", encoding="utf-8") as file:
            _write_rows(file, name, outcomes, ratios, arguments)
        if stdout:
            return
    _show(name, outcomes, ratios, columns, peer, details=details)


def _write_rows(
    file: TextIO, name: str, outcomes: Sequence[Outcome], ratios: Sequence[Ratios], arguments: argparse.Namespace
) -> None:
    # The destination of the rows does not affect the results, and a path may contain a person's name.
    flags = {flag: value for flag, value in vars(arguments).items() if flag not in ("json", "data", "command", "plot")}
    rows: list[dict[str, object]] = [
        {"kind": "machine", "benchmark": name, "flags": flags, **asdict(machine.collect_details())}
    ]
    for outcome, found in zip(outcomes, ratios, strict=True):
        known = {"benchmark": name, "case": outcome.case, "side": outcome.side.name}
        rows += [{"kind": "round", **known, "round": n, **figures} for n, figures in enumerate(outcome.rounds)]
        summary = {
            "rounds": len(outcome.rounds),
            "disturbed_rounds": outcome.disturbed_count,
            "peak_pss_mb": outcome.peak_pss_mb,
            "figures": {figure: _plain(outcome.spread(figure)) for figure in outcome.rounds[0]},
            "ratios": {base: {figure: _plain(value) for figure, value in by.items()} for base, by in found.items()},
        }
        rows.append({"kind": "summary", **known, **summary})
    file.writelines(json.dumps(row) + "\n" for row in rows)


def _show(
    name: str,
    outcomes: Sequence[Outcome],
    ratios: Sequence[Ratios],
    columns: Sequence[Column],
    peer: str,
    *,
    details: bool,
) -> None:
    compared = [column.figure for column in columns if column.better]
    others = [base for base in (BEST, INLINE) if details and any(base in found for found in ratios)]
    has_peak = details and any(outcome.peak_pss_mb is not None for outcome in outcomes)
    has_note = any(outcome.disturbed_count for outcome in outcomes)
    least, rounds = (pick(len(outcome.rounds) for outcome in outcomes) for pick in (min, max))
    up_to = "up to " if least < rounds else ""
    title = f"{printable(name)}: median of {up_to}{rounds} interleaved rounds [lowest..highest]"
    names = [*outcomes[0].case, "loader"]
    heads = [head for column in columns for head in (column.title, *([f"x {peer}"] if column.better else []))]
    heads += [TITLES[base] for base in others]
    heads += ["peak PSS\nMB"] if has_peak else []
    table = Table(
        title,
        [*names, *heads, *(["note"] if has_note else [])],
        numbers=range(len(names), len(names) + len(heads)),
        ends={max(n for n, other in enumerate(outcomes) if other.case == one.case) for one in outcomes},
    )
    for outcome, found in zip(outcomes, ratios, strict=True):
        cells: list[str] = []
        for column in columns:
            cells.append(_cell(outcome.spread(column.figure), column))
            if column.better:
                ranged = column.figure == compared[0]
                cells.append(times(found.get(peer, {}).get(column.figure), with_range=ranged))
        cells += [times(found.get(base, {}).get(compared[0])) for base in others]
        if has_peak:
            cells.append("" if outcome.peak_pss_mb is None else f"{outcome.peak_pss_mb:,.0f}")
        if has_note:
            count = outcome.disturbed_count
            cells.append(f"{count}/{len(outcome.rounds)} disturbed" if count else "")
        case: list[Styled] = [f"{value:,}" if isinstance(value, int) else value for value in outcome.case.values()]
        table.rows.append([*case, outcome.side.name, *cells])
    screen = Screen()
    screen.table(table)
    if has_note:
        screen.line("Disturbed: other programs used the cores meanwhile. Run it again on a quiet machine.", wraps=False)


def _cell(found: Spread | None, column: Column) -> str:
    """Format a figure, with its range if the column shows ranges and the values differ."""
    if found is None:
        return ""
    median, low, high = (f"{v * column.scale:,.{column.digits}f}" for v in (found.median, found.low, found.high))
    return f"{median} [{low}..{high}]" if column.with_range and found.low < found.high else median


def times(found: Spread | None, *, with_range: bool = False) -> str:
    """Format a ratio."""
    digits = 1 if found is not None and found.median >= 10 else 2
    return _cell(found, Column("", "", digits=digits, with_range=with_range))


def _plain(found: Spread | None) -> dict[str, float] | None:
    return None if found is None else asdict(found)


def _data_of(case: Case) -> Case:
    """Return a case without the settings of its loader."""
    return {name: value for name, value in case.items() if name not in ("workers", "prefetch", "pinned")}
