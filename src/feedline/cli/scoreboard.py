"""Show comparisons: a table for people, JSON lines for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from statistics import median

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import feedline
from feedline.cli.contest import Comparison, Round
from feedline.system.process import core_count

EVEN = 0.05  # ratios this close to 1 are called even
BUSY_CORES = 0.1  # other load above this spoils a measurement


def show_table(comparisons: Sequence[Comparison], console: Console) -> None:
    """Draw the table, losses as plainly as wins, then what the reader should know about the measurement."""
    title = "feedline against torch's DataLoader on this machine"
    table = Table(title=title, caption=_describe_machine(comparisons), box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("batches of", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    for name in ("torch", "feedline", "ratio", "spread", "start ms"):
        table.add_column(name, justify="right", no_wrap=True)
    for comparison in comparisons:
        table.add_row(*_row(comparison))
    console.print(table)
    for remark in find_remarks(comparisons):
        console.print(remark)


def find_remarks(comparisons: Sequence[Comparison]) -> list[str]:
    """Name what a reader could miss: cases that feedline lost, and load that spoiled the measurement."""
    remarks = []
    lost = [comparison.case.label for comparison in comparisons if comparison.ratio < 1 - EVEN]
    if lost:
        remarks.append(f"feedline was slower here: {', '.join(lost)}.")
    loads = [comparison.other_load for comparison in comparisons if comparison.other_load is not None]
    if loads and max(loads) > BUSY_CORES:
        remarks.append(f"Other programs used up to {max(loads):.1f} cores meanwhile: run it again on a quiet machine.")
    return remarks


def to_json_line(comparison: Comparison) -> str:
    """Write one comparison as a line of JSON, every round included."""
    case = comparison.case
    row = {
        "case": case.name,
        "unit": f"{case.unit}/s",
        "batch_size": case.batch_size,
        "workers": case.worker_count,
        "torch": _summarise(comparison.torch),
        "feedline": _summarise(comparison.feedline),
        "ratio": comparison.ratio,
        "ratios": comparison.ratios,
        "other_load_cores": comparison.other_load,
        "machine": describe_versions(),
    }
    return json.dumps(row)


def describe_versions() -> dict[str, str | int | None]:
    """Say what the figures were measured on, without naming the host."""
    return {
        "cores": core_count(),
        "system": platform.system(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "feedline": feedline.__version__,
    }


def _row(comparison: Comparison) -> list[str]:
    case = comparison.case
    ratio = comparison.ratio
    colour = "green" if ratio > 1 + EVEN else "yellow" if ratio >= 1 - EVEN else "red"
    rates = [_format_rate(_median_rate(rounds)) for rounds in (comparison.torch, comparison.feedline)]
    starts = [f"{_median_start(rounds):,.0f}" for rounds in (comparison.torch, comparison.feedline)]
    return [
        case.label,
        f"{case.unit}/s",
        *rates,
        f"[bold {colour}]{_format_ratio(ratio)}x[/]",
        f"{_format_ratio(min(comparison.ratios))}-{_format_ratio(max(comparison.ratios))}",
        "/".join(starts),
    ]


def _format_rate(rate: float) -> str:
    return f"{rate:,.2f}" if rate < 100 else f"{rate:,.0f}"


def _format_ratio(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}"


def _summarise(rounds: Sequence[Round]) -> dict[str, float | list[float]]:
    return {
        "rate": _median_rate(rounds),
        "rates": [item.rate for item in rounds],
        "first_batch_ms": _median_start(rounds),
    }


def _median_rate(rounds: Sequence[Round]) -> float:
    return median(item.rate for item in rounds)


def _median_start(rounds: Sequence[Round]) -> float:
    return median(item.first_batch_ms for item in rounds)


def _describe_machine(comparisons: Sequence[Comparison]) -> str:
    versions = describe_versions()
    rounds = min((len(comparison.torch) for comparison in comparisons), default=0)
    return (
        f"medians of {rounds} rounds in turns; start: until the first batch, torch/feedline\n"
        f"{versions['cores']} cores, {versions['system']} {versions['processor']}, Python {versions['python']}, "
        f"torch {versions['torch']}, feedline {versions['feedline']}"
    )
