from __future__ import annotations

import ast
import io
import re
import sys
from pathlib import Path

import pytest

import feedline
from feedline.types.plain_screen import PlainScreen
from feedline.types.rich_screen import RichScreen
from feedline.types.screen import Screen, Table
from feedline.types.terminal import has_rich, open_screen

SOURCES = Path(feedline.__file__).parent
FOREIGN = ("data:train:x", "[red]x[/red]", "[/]")


def screens(file: io.StringIO, *, is_terminal: bool = False) -> list[Screen]:
    return [
        RichScreen(file=file, width=100, force_terminal=is_terminal),
        PlainScreen(file=file, is_terminal=is_terminal),
    ]


@pytest.mark.parametrize("text", FOREIGN)
@pytest.mark.parametrize("place", [0, 1])
def test_strings_are_printed_unchanged(text: str, place: int) -> None:
    file = io.StringIO()
    screen = screens(file)[place]
    screen.line(text, (text, "red"), indent=2)
    screen.table(Table(text, [text], [[text], [(text, "red")]]))
    assert file.getvalue().count(text) == 6


@pytest.mark.parametrize("text", FOREIGN)
@pytest.mark.parametrize("place", [0, 1])
def test_bars_print_descriptions_unchanged(text: str, place: int) -> None:
    file = io.StringIO()
    with screens(file, is_terminal=True)[place].bar() as bar:
        bar.begin(text, 3, unit="samples")
        bar.update(advance=1, note=text)
    assert file.getvalue().count(text) >= 2


def test_rows_are_single_lines_in_a_file_and_numbers_are_right_aligned() -> None:
    file = io.StringIO()
    long = "found " * 40 + "end"
    table = Table("T", ["what", "CPU\nus"], [[long, "1"], ["b", "23"]], numbers=[1], ends={0, 1}, folds=False)
    open_screen(file=file).table(table)
    lines = [line.split() for line in file.getvalue().splitlines()]
    assert ["T"] in lines
    assert [*long.split(), "1"] in lines
    ends = {line.rstrip()[-2:] for line in file.getvalue().splitlines() if line.rstrip().endswith(("1", "23"))}
    assert ends == {" 1", "23"}


def test_nothing_is_wrapped_or_filled_with_spaces_in_a_file() -> None:
    file = io.StringIO()
    screen = open_screen(file=file)
    long = "word " * 60 + "end"
    screen.line(long, (long, "bold"), indent=2)
    screen.table(Table("T", ["what", "found"], [["a", long], ["longer", "b"]], folds=True))
    lines = file.getvalue().splitlines()
    assert lines[0] == f"  {long}{long}"
    assert len(lines) == 6
    assert all(line == line.rstrip() for line in lines)


def test_headers_are_directly_above_their_columns() -> None:
    file = io.StringIO()
    PlainScreen(file=file).table(Table("T", ["what", "CPU\nus"], [["a", "1"]]))
    assert file.getvalue() == "T\n       CPU\nwhat   us\n----------\na      1\n"


def test_the_plain_bar_is_overwritten_and_erased() -> None:
    file = io.StringIO()
    screen = PlainScreen(file=file, is_terminal=True)
    with screen.bar() as bar:
        bar.begin("packing", 100, done=10, unit="samples")
        bar.update(done=40)
        screen.line("above")
        bar.update(done=100)
    written = file.getvalue()
    assert "packing  40/100  " in written
    assert "samples/s" in written
    assert "100/100" in written, "the end is always drawn"
    assert "above\n" in written
    assert written.endswith("\r")
    assert not written.split("\r")[-2].strip()


def test_the_plain_bar_fits_the_terminal_and_writes_nothing_to_a_file() -> None:
    file = io.StringIO()
    for is_terminal in (True, False):
        with PlainScreen(file=file, is_terminal=is_terminal).bar() as bar:
            bar.begin("", None)
            bar.update(advance=1, note="x" * 500)
        assert max(map(len, file.getvalue().split("\r"))) <= 78
        assert 0 < file.getvalue().count("x") < 80


@pytest.mark.parametrize("place", [0, 1])
def test_a_persistent_bar_writes_its_last_state_even_to_a_file(place: int) -> None:
    file = io.StringIO()
    with screens(file)[place].bar(stays=True) as bar:
        bar.begin("precompute", 50)
        bar.update(advance=50, note="9 MB/s")
    assert re.fullmatch(r"precompute .*50/50 .*9 MB/s.*\n", file.getvalue())


def test_rich_is_used_on_a_terminal_if_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert has_rich()
    assert isinstance(open_screen(is_terminal=True), RichScreen)
    assert isinstance(open_screen(file=io.StringIO()), PlainScreen), "rich has nothing to add in a file or a pipe"
    for name in [name for name in sys.modules if name.partition(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert not has_rich()
    assert isinstance(open_screen(is_terminal=True), PlainScreen)


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
    assert {one.partition(":")[0] for one in found} == {"types/rich_screen.py"}, found
