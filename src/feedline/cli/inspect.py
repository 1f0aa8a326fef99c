"""`feedline inspect`: what is in a store or folder of samples, as tables or as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedline._optional import require
from feedline.packing.contents import Contents, look
from feedline.packing.contents.contents import value_text
from feedline.packing.contents.sheet import write_sheet
from feedline.packing.line import reading_lines
from feedline.packing.quantities import bytes_text
from feedline.packing.schema import Sample
from feedline.packing.verify import verify as verify_digest
from feedline.values.shown import printable

if TYPE_CHECKING:
    from rich.console import Console

_SHEET_PICTURES = 64


def run(*, path: str, sample_count: int, sheet: Path | None, verify: bool, as_json: bool) -> None:
    """Write what is there to standard output.

    Raises:
        SourceError: there is nothing, or nothing that is known.
        CorruptSource: it is damaged.
        BadOption: a sheet was asked for and there are no pictures, or a check and there is no digest.
        MissingExtra: a table was asked for, and the package that draws it is not installed.
    """
    contents = look(Path(path))
    samples = contents.take(sample_count) if sample_count else []
    facts = described(contents, samples)
    if sheet is not None:
        facts["pictures on the sheet"] = write_sheet(contents.take(_SHEET_PICTURES), sheet)
    if verify:
        facts["verified"] = verify_digest(contents)
    if as_json:
        sys.stdout.write(json.dumps(facts) + "\n")
        return
    require("rich", extra="pack", purpose="The tables of `feedline inspect` (with --json there are none)")
    from rich.console import Console

    show(_printable(facts), Console())
    if sheet is not None:
        sys.stdout.write(printable(f"\n{facts['pictures on the sheet']} pictures in {sheet}\n"))


# Any: values that JSON keeps.
def described(contents: Contents, samples: list[Sample]) -> dict[str, Any]:
    """Return all that is shown, in values that JSON keeps."""
    stored = contents.stored or {}
    return {
        "path": str(contents.path),
        "kind": contents.kind,
        "samples": contents.count,
        "bytes": contents.size,
        "files": contents.file_count,
        "fields": [{"name": field.name, "type": field.type, "stored": field.stored} for field in contents.fields],
        "details": contents.details,
        "packed": {name: stored[name] for name in ("digest", "skipped", "facts") if stored.get(name)},
        "examples": [{name: value_text(value) for name, value in sample.items()} for sample in samples],
        "line": contents.line,
    }


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
    count = "unknown" if facts["samples"] is None else f"{facts['samples']:,}"
    summary = table(facts["path"], "what", "found")
    summary.add_row("kind", Text(facts["kind"]))
    summary.add_row("samples", count)
    summary.add_row(
        "size", f"{bytes_text(facts['bytes'])} in {facts['files']:,} file{'s' if facts['files'] > 1 else ''}"
    )
    for name, value in {**facts["details"], **facts["packed"]}.items():
        summary.add_row(Text(str(name)), Text(_plain(value)))
    if "verified" in facts:
        summary.add_row("verified", Text("all samples were read, and their digest is the one that was stored"))
    console.print(summary)
    if facts["fields"]:
        fields = table("\nFields", "name", "type", "stored")
        for field in facts["fields"]:
            fields.add_row(Text(field["name"]), Text(field["type"]), Text(field["stored"]))
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


# Any, here and below: values that JSON keeps.
def _printable(value: Any) -> Any:
    """Write as escapes what a terminal would obey or cannot show, in names and texts out of files."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {_printable(name): _printable(one) for name, one in value.items()}
    return list(map(_printable, value)) if isinstance(value, list) else value


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        between = "\n" if any(isinstance(one, str) for one in value.values()) else ", "
        return between.join(f"{name}: {_plain(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
