from __future__ import annotations

import io
import re
import sys

import pytest

from feedline.system.screen import Screen, Table, has_rich

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
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    assert re.search(r"precompute .*50/50 .*9 MB/s", plain)


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
