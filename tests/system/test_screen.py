from __future__ import annotations

import ast
import io
import re
import sys
from pathlib import Path

import pytest

import feedline
from feedline.system.screen import Screen, Table, has_rich

SOURCES = Path(feedline.__file__).parent
FOREIGN = ("data:train:x", "[red]x[/red]", "[/]")


@pytest.mark.parametrize("text", FOREIGN)
@pytest.mark.parametrize("is_terminal", [True, False])
def test_strings_are_printed_unchanged(text: str, is_terminal: bool) -> None:
    file = io.StringIO()
    screen = Screen(file=file, is_terminal=is_terminal)
    screen.line((text, "red"), text, indent=2)
    screen.table(Table(text, [text], [[text], [(text, "red")]]))
    assert file.getvalue().count(text) == 6
    assert ("\x1b[31m" in file.getvalue()) is is_terminal


@pytest.mark.parametrize("text", FOREIGN)
def test_bars_print_descriptions_unchanged(text: str) -> None:
    file = io.StringIO()
    with Screen(file=file, is_terminal=True).bar() as bar:
        bar.begin(text, 3, unit="samples")
        bar.update(advance=1, note=text)
    assert file.getvalue().count(text) >= 2


def test_nothing_is_wrapped_or_filled_with_spaces_in_a_file() -> None:
    file = io.StringIO()
    screen = Screen(file=file)
    long = "word " * 60 + "end"
    screen.line(long, (long, "bold"), indent=2)
    screen.table(Table("T", ["what", "found"], [["a", long], ["longer", "b"]], ends={0, 1}))
    lines = file.getvalue().splitlines()
    assert lines[0] == f"  {long}{long}"
    assert len(lines) == 7
    assert all(line == line.rstrip() for line in lines)


def test_text_is_wrapped_on_a_terminal_but_code_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    file = io.StringIO()
    screen = Screen(file=file, is_terminal=True)
    screen.line("word " * 60, indent=2)
    screen.table(Table("T", ["what", "found"], [["a", "found " * 40], ["longer", "b"]]))
    assert max(map(len, file.getvalue().splitlines())) <= 60
    assert file.getvalue().count("found") == 41
    screen.line("x = 1; " * 30, wraps=False)
    assert len(file.getvalue().splitlines()[-1]) > 60


def test_headers_are_directly_above_their_columns_and_numbers_are_right_aligned() -> None:
    file = io.StringIO()
    Screen(file=file).table(Table("T", ["what", "CPU\nus"], [["a", "1"], ["b", "23"]], numbers=[1]))
    assert file.getvalue() == "T\n       CPU\nwhat    us\n----------\na        1\nb       23\n"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_persistent_bar_writes_its_last_state_even_to_a_file(is_terminal: bool) -> None:
    file = io.StringIO()
    with Screen(file=file, is_terminal=is_terminal).bar(stays=True) as bar:
        bar.begin("precompute", 50)
        bar.update(advance=50, note="9 MB/s")
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert re.search(r"precompute .*50/50 .*9 MB/s", plain)


def test_a_bar_that_does_not_stay_writes_nothing_to_a_file() -> None:
    file = io.StringIO()
    with Screen(file=file).bar() as bar:
        bar.begin("packing", None)
        bar.update(advance=1)
    assert not file.getvalue()


def test_everything_works_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_rich()
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert not has_rich()
    file = io.StringIO()
    with Screen(file=file, is_terminal=True).bar(stays=True) as bar:
        bar.begin("packing", 2)
        bar.update(done=2)
    assert file.getvalue() == "packing  2/2\n"


def test_rich_objects_are_created_in_one_module_only() -> None:
    makers = {"Console", "Progress", "TextColumn", "Panel", "from_markup", "rich_print"}
    found = [
        f"{path.relative_to(SOURCES)}:{node.lineno}"
        for path in SOURCES.rglob("*.py")
        if re.search(r"\b(from|import) rich\b", path.read_text("utf-8"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and (getattr(node.func, "id", None) in makers or getattr(node.func, "attr", None) in makers)
    ]
    assert {one.partition(":")[0] for one in found} == {"system/screen.py"}, found
