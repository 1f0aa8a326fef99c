"""`feedline inspect`: describe a store or folder of samples, as tables or as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from feedline.system.shown import counted, printable
from feedline.system.sizes import bytes_text
from feedline.tools.cli import options
from feedline.tools.screen import Screen, Table
from feedline.tools.write.inspection import inspect
from feedline.types import JsonObject


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options."""
    parser.add_argument(
        "path",
        metavar="PATH",
        help="HDF5, LMDB, tar, Parquet, Arrow, .npy, .npz, SQLite, CSV, a folder of these or of files, or "
        "the address of a folder that `feedline pack` wrote",
    )
    parser.add_argument("--fields", type=options.names, metavar="A,B", help="fields to read (all)")
    parser.add_argument(
        "--verify", action="store_true", help="read all samples, and compare their number and all checksums"
    )
    parser.add_argument("--json", action="store_true", help="write JSON to standard output instead of tables")


def run(arguments: argparse.Namespace) -> None:
    """Write a description of the store or folder to standard output.

    Raises:
        SourceError: nothing exists at the path, or no source can read it.
        CorruptSource: the data is damaged.
    """
    details = inspect(arguments.path, fields=arguments.fields, verify=arguments.verify)
    if arguments.json:
        sys.stdout.write(json.dumps(details) + "\n")
        return
    show(_printable(details), Screen())


def show(details: JsonObject, screen: Screen) -> None:
    """Draw the details as tables."""
    count, files = details["samples"], details["files"]
    summary = [
        ["format", f"{details['format']}, {details['form']}, read by {details['source']}"],
        ["samples", "unknown: a stream has no length" if count is None else _plain(count)],
        *([["size", f"{bytes_text(details['bytes'])} in {counted(files, 'file')}"]] if files else []),
        *([str(name), _plain(value)] for name, value in details["metadata"].items()),
    ]
    if details["left out"]:
        summary.append(["left out", f"{counted(details['left out'], 'file')} in the folder"])
    if details["skipped"]:
        summary.append(["skipped", f"{counted(details['skipped'], 'sample')} when it was packed"])
    if details["verified"] is not None:
        summary.append(["verified", f"all {details['verified']:,} samples were read"])
    screen.table(Table(details["path"], ["what", "found"], list(summary)))
    if details["fields"]:
        columns = ["name", "type", "example"]
        title = f"\nFields, seen in {details['looked at']:,} samples"
        if not details["looked at"]:
            columns, title = columns[:2], "\nFields, from the manifest"
        fields = [[field[column] for column in columns] for field in details["fields"]]
        screen.table(Table(title, columns, list(fields)))
    if details["line"]:
        screen.line("\nRead it with:")
        screen.line(f"  {details['line']}", wraps=False)


# Any: a value from JSON, as `value` is.
def _printable(value: object) -> Any:
    """Escape characters that a terminal would interpret or cannot show, in names and texts from files."""
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
