"""`feedline inspect`: describe a store or folder of samples, as tables or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from feedline.system.optional import require
from feedline.tools.packing.inspection import inspect
from feedline.types import JsonObject
from feedline.types.shown import counted, printable
from feedline.types.sizes import bytes_text
from feedline.types.terminal import plain_console

if TYPE_CHECKING:
    from rich.console import Console


def run(arguments: argparse.Namespace) -> None:
    """Write a description of the store or folder to standard output.

    Raises:
        SourceError: nothing exists at the path, or no source can read it.
        CorruptSource: the data is damaged.
        MissingExtra: the package that draws the tables is not installed.
    """
    details = inspect(arguments.path, fields=arguments.fields, verify=arguments.verify)
    if arguments.json:
        sys.stdout.write(json.dumps(details) + "\n")
        return
    require("rich", extra="pack", purpose="The tables of `feedline inspect` (with --json there are none)")
    show(_printable(details), plain_console())


# Any, here and below: JSON-compatible values.
def show(details: JsonObject, console: Console) -> None:
    """Draw the details as tables."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    def table(title: str, *columns: str) -> Table:
        made = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for name in columns:
            made.add_column(name, overflow="fold")
        return made

    # Text, not str: text from a file must not be interpreted as markup.
    summary = table(details["path"], "what", "found")
    summary.add_row("format", Text(f"{details['format']}, {details['form']}, read by {details['source']}"))
    count, many = details["samples"], "s" if details["files"] > 1 else ""
    summary.add_row("samples", "unknown: a stream has no length" if count is None else _plain(count))
    summary.add_row("size", f"{bytes_text(details['bytes'])} in {details['files']:,} file{many}")
    for name, value in details["metadata"].items():
        summary.add_row(Text(str(name)), Text(_plain(value)))
    if details["left out"]:
        summary.add_row("left out", f"{counted(details['left out'], 'file')} in the folder")
    if details["skipped"]:
        summary.add_row("skipped", f"{counted(details['skipped'], 'sample')} when it was packed")
    if details["verified"] is not None:
        summary.add_row("verified", f"all {details['verified']:,} samples were read")
    console.print(summary)
    if details["fields"]:
        fields = table(f"\nFields, as {details['looked at']:,} samples show them", "name", "type", "example")
        for field in details["fields"]:
            fields.add_row(Text(field["name"]), Text(field["type"]), Text(field["example"]))
        console.print(fields)
    if details["line"]:
        console.print("\nRead it with:")
        console.print(Text(f"  {details['line']}"), soft_wrap=True)


def _printable(value: object) -> Any:
    """Escape characters that a terminal would obey or cannot show, in names and texts from files."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(name): _printable(one) for name, one in value.items()}
    return list(map(_printable, value)) if isinstance(value, list) else value


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
