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

_FIELDS_SHOWN, _VALUE_SHOWN = 20, 200
"""The most fields and characters of metadata that fit on a screen; --json has the rest."""


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
    _show(_printable(details), Screen())


def _show(details: JsonObject, screen: Screen) -> None:
    count, files = details["samples"], details["files"]
    summary = [
        ["format", f"{details['format']}, {details['form']}, read by {details['source']}"],
        ["samples", "unknown: a stream has no length" if count is None else f"{count:,}"],
        *([["size", f"{bytes_text(details['bytes'])} in {counted(files, 'file')}"]] if files else []),
        *([str(name), _short(value)] for name, value in details["metadata"].items()),
        *([["left out", f"{counted(details['left out'], 'file')} in the folder"]] if details["left out"] else []),
        *([["skipped", f"{counted(details['skipped'], 'sample')} when it was packed"]] if details["skipped"] else []),
    ]
    if details["verified"] is not None:
        summary.append(["verified", f"all {details['verified']:,} samples were read"])
    screen.table(Table(details["path"], ["what", "found"], list(summary)))
    looked = details["looked at"]
    columns = ["name", "type", "example"] if looked else ["name", "type"]
    fields = [[field[column] for column in columns] for field in details["fields"]]
    if len(fields) > _FIELDS_SHOWN:
        fields[_FIELDS_SHOWN:] = [[f"... {len(fields) - _FIELDS_SHOWN} more: --json", *[""] * (len(columns) - 1)]]
    if fields:
        title = f"Fields, seen in {looked:,} samples" if looked else "Fields, from the manifest"
        screen.table(Table(f"\n{title}", columns, list(fields)))
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


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _VALUE_SHOWN else f"{text[: _VALUE_SHOWN - 3]}..."
