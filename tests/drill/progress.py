"""Shows the progress of a drill: a bar on a terminal, otherwise a line at intervals."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.drill.soak import Listener, Plan
from tests.drill.summary import Summary

_LINE_EVERY_S = 30.0


def _fraction(plan: Plan, summary: Summary) -> float:
    parts = [summary.seconds / plan.seconds]
    if plan.count is not None:
        parts.append(summary.rounds / (plan.count * plan.times))
    return min(1.0, max(parts))


def _text(summary: Summary) -> str:
    faults, failures = sum(summary.faults.values()), len(summary.failures)
    return f"{summary.rounds} rounds, {faults:,} faults, {summary.samples:,} samples, {failures} failures"


@contextlib.contextmanager
def shown(plan: Plan, console: Console) -> Iterator[Listener]:
    """Show the progress of a drill during the block; yield the listener that updates it."""
    if not console.is_terminal:
        yield _lines(plan, console)
        return
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda summary: bar.update(task, completed=_fraction(plan, summary), description=_text(summary))


def _lines(plan: Plan, console: Console) -> Listener:
    printed_s = 0.0
    failures = 0

    def print_line(summary: Summary) -> None:
        nonlocal printed_s, failures
        if summary.seconds - printed_s < _LINE_EVERY_S and len(summary.failures) == failures:
            return
        printed_s, failures = summary.seconds, len(summary.failures)
        console.print(f"{_fraction(plan, summary):4.0%}  {_text(summary)}", highlight=False)

    return print_line
