"""`feedline doctor`: look at this machine, or into a file of faults, and say what to change."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedline._optional import require
from feedline.bench import machine
from feedline.cli import fault_file
from feedline.cli.findings import Finding, find

if TYPE_CHECKING:
    from rich.console import Console


def run(arguments: argparse.Namespace) -> None:
    """Write what was found to standard output, as a table or as JSON.

    Raises BadState: the file cannot be read, is damaged, or is something else; MissingExtra: a table was asked for, and
    the package that draws it is not installed.
    """
    file: Path | None = arguments.file
    lines: list[str] = []
    if file is None:
        title = "This machine"
        looked_at = machine.look()
        findings = find(looked_at)
        facts: dict[str, Any] = {"machine": asdict(looked_at)}  # values that JSON keeps
    else:
        title = fault_file.one_line(f"Faults in {file.name}")
        held = fault_file.read(file)
        findings, lines = fault_file.find(held), fault_file.first_lines(held)
        facts = {"faults": fault_file.describe(held)}
    if arguments.json:
        sys.stdout.write(json.dumps({**facts, "findings": [asdict(finding) for finding in findings]}) + "\n")
        return
    require("rich", extra="demo", purpose="The table of `feedline doctor` (with --json there is none)")
    from rich.console import Console

    show(title, findings, lines, Console())


def show(title: str, findings: Sequence[Finding], lines: Sequence[str], console: Console) -> None:
    """Draw the findings as a table, those that ask for a change in colour, and lines of the log under it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    # Text, not str: what a file says is not to be taken for markup.
    table = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for name in ("what", "found", "to change"):
        table.add_column(name, overflow="fold")
    for finding in findings:
        colour = "yellow" if finding.advice else ""
        table.add_row(Text(finding.subject, colour), Text(finding.found), Text(finding.advice or "nothing", colour))
    console.print(table)
    if lines:
        console.print("\nThe first of them:")
    for line in lines:
        console.print(Text(f"  {line}"))
