from __future__ import annotations

import io

import pytest

from feedline.tools.screen import Screen, Table

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


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_persistent_bar_writes_its_last_state_even_to_a_file(is_terminal: bool) -> None:
    file = io.StringIO()
    with Screen(file=file, is_terminal=is_terminal).bar(stays=True) as bar:
        bar.begin("precompute", 50)
        bar.update(advance=50, note="9 MB/s")
    shown = file.getvalue().rpartition("\x1b[K")
    assert shown[2] == "precompute  50/50  9 MB/s\n"
    assert ("precompute  0/50" in shown[0]) is is_terminal
