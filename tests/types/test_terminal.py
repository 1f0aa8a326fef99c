from __future__ import annotations

import ast
import io
import re
from pathlib import Path

import pytest
from rich.table import Table

import feedline
from feedline.types.terminal import plain_console, plain_progress

SOURCES = Path(feedline.__file__).parent
FOREIGN = ("data:train:x", "[red]x[/red]", "[/]")


@pytest.mark.parametrize("text", FOREIGN)
def test_strings_are_printed_as_they_are(text: str) -> None:
    console = plain_console(file=io.StringIO(), width=100)
    table = Table(title=text)
    table.add_column(text)
    table.add_row(text)
    console.print(text)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().count(text) == 4


@pytest.mark.parametrize("text", FOREIGN)
def test_bars_print_descriptions_as_they_are(text: str) -> None:
    out = io.StringIO()
    with plain_progress("{task.description}", console=plain_console(file=out, force_terminal=True)) as bar:
        bar.add_task(text)
    assert text in out.getvalue()


def test_consoles_and_text_columns_are_made_here_only() -> None:
    makers = {"Console", "Progress", "TextColumn", "Panel", "from_markup", "rich_print"}
    found = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in SOURCES.rglob("*.py")
        if re.search(r"\b(from|import) rich\b", path.read_text("utf-8"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) in makers or getattr(node.func, "attr", None) in makers)
    ]
    assert {one.partition(":")[0] for one in found} == {"types/terminal.py"}, found
