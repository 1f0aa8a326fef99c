"""`feedline inspect`: what is in a store or folder of samples, as tables or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from feedline._optional import require
from feedline.cli.sheet import write_sheet
from feedline.packing.inspection import inspect, look_into, take
from feedline.packing.line import reading_lines
from feedline.values.shown import printable
from feedline.values.sizes import bytes_text
from feedline.values.terminal import plain_console

if TYPE_CHECKING:
    from rich.console import Console

_SHEET_PICTURES = 64


def run(arguments: argparse.Namespace) -> None:
    """Write what is there to standard output.

    Raises:
        SourceError: there is nothing, or nothing that a source reads.
        CorruptSource: it is damaged.
        BadOption: a sheet was asked for and there are no pictures.
        MissingExtra: a table was asked for, and the package that draws it is not installed.
    """
    path, fields, sheet = arguments.path, arguments.fields, arguments.sheet
    facts = inspect(path, fields=fields, sample_count=arguments.samples, verify=arguments.verify)
    if sheet is not None:
        with look_into(path, fields) as opened:
            facts["pictures on the sheet"] = write_sheet(take(opened, _SHEET_PICTURES), sheet)
    if arguments.json:
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    require("rich", extra="pack", purpose="The tables of `feedline inspect` (with --json there are none)")
    show(_printable(facts), plain_console())
    if sheet is not None:
        sys.stdout.write(printable(f"\n{facts['pictures on the sheet']} pictures in {sheet}\n"))


# Any, here and below: values that JSON keeps.
def show(facts: dict[str, Any], console: Console) -> None:
    """Draw the facts as tables."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    def table(title: str, *columns: str) -> Table:
        made = Table(title=Text(title), title_justify="left", box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for name in columns:
            made.add_column(name, overflow="fold")
        return made

    # Text, not str: what a file says is not to be taken for markup.
    summary = table(facts["path"], "what", "found")
    summary.add_row("format", Text(f"{facts['format']}, {facts['form']}, read by {facts['source']}"))
    count, many = facts["samples"], "s" if facts["files"] > 1 else ""
    summary.add_row("samples", "unknown: a stream has no length" if count is None else _plain(count))
    summary.add_row("size", f"{bytes_text(facts['bytes'])} in {facts['files']:,} file{many}")
    for name, value in {**facts["packed"], **facts["facts"]}.items():
        summary.add_row(Text(str(name)), Text(_plain(value)))
    if facts["left out"]:
        summary.add_row("left out", Text("\n".join(facts["left out"])))
    if facts["verified"] is not None:
        compared = ", and their digest is the one that was stored" if facts["verified"]["digest"] else ""
        summary.add_row("verified", f"all {facts['verified']['samples']:,} samples were read{compared}")
    console.print(summary)
    if facts["fields"]:
        fields = table(f"\nFields, as {facts['looked at']:,} samples show them", "name", "type", "statistics")
        for field in facts["fields"]:
            fields.add_row(Text(field["name"]), Text(field["type"]), Text(_statistics(field)))
        console.print(fields)
    if facts["examples"]:
        examples = table("\nSamples", "field", *(str(number) for number in range(1, len(facts["examples"]) + 1)))
        for name in dict.fromkeys(name for sample in facts["examples"] for name in sample):
            examples.add_row(Text(name), *(Text(sample.get(name, "")) for sample in facts["examples"]))
        console.print(examples)
    if facts["line"]:
        console.print("\nRead it with:")
        for line in reading_lines(facts["line"]):
            console.print(Text(f"  {line}"), soft_wrap=True)


def _statistics(field: dict[str, Any]) -> str:
    parts = []
    if "mean" in field:
        parts.append(f"{field['min']:.6g} to {field['max']:.6g}, mean {field['mean']:.6g}")
    if "longest" in field:
        unit = "characters" if field["type"] == "str" else "bytes"
        parts.append(f"{_range(field['shortest'], field['longest'])} {unit}")
    if "largest picture" in field:
        sizes = (" x ".join(map(str, field[name])) for name in ("smallest picture", "largest picture"))
        parts.append(f"{_range(*sizes)} pixels")
    if "unreadable pictures" in field:
        example = f", such as {field['such as']}" if "such as" in field else ""
        parts.append(f"unreadable pictures: {field['unreadable pictures']:,}{example}")
    if "missing" in field:
        parts.append(f"missing: {field['missing']:,}")
    return ", ".join(parts)


def _range(low: Any, high: Any) -> str:
    return _plain(low) if low == high else f"{_plain(low)} to {_plain(high)}"


def _printable(value: Any) -> Any:
    """Write as escapes what a terminal would obey or cannot show, in names and texts out of files."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(name): _printable(one) for name, one in value.items()}
    return list(map(_printable, value)) if isinstance(value, list) else value


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
