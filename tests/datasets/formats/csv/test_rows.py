"""Where rows end, compared with Python's csv module, which follows the same rules."""

from __future__ import annotations

import csv
import io
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets.formats.csv import rows
from feedline.datasets.formats.csv.rows import Unclosed, parts, row_ends


def cut(content: bytes, size: int, delimiter: str = ",") -> list[bytes]:
    """Return the rows of a file, each without its line ending and the empty lines before it."""
    found = []
    for part in parts(io.BytesIO(content).read, delimiter, size):
        start = 0
        for end in part.ends.tolist():
            found.append(part.content[start:end].strip(b"\r\n"))
            start = end
        assert start == len(part.content)
    return found


cells = st.text(st.sampled_from('ab,;"\n\r é'), max_size=6)


@settings(deadline=None)
@given(
    table=st.lists(st.lists(cells, min_size=2, max_size=3), max_size=8),
    # The csv module quotes only the line endings that it writes itself.
    form=st.sampled_from([("\n", csv.QUOTE_ALL), ("\r", csv.QUOTE_ALL), ("\r\n", csv.QUOTE_MINIMAL)]),
    size=st.integers(1, 40),
)
def test_rows_equal_those_of_the_csv_module(table: list[list[str]], form: tuple[str, Any], size: int) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=form[0], quoting=form[1]).writerows(table)
    found = cut(text.getvalue().encode(), size)
    assert [next(csv.reader(io.StringIO(row.decode(), newline=""))) for row in found] == table


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_quotes_within_unquoted_cells_are_ordinary_characters(size: int) -> None:
    content = b'size,kind\n5" pipe,"a\nb"\n6" pipe,c\n"x"y"z,"d""\n,"'
    assert cut(content, size) == [b"size,kind", b'5" pipe,"a\nb"', b'6" pipe,c', b'"x"y"z,"d""\n,"']


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_empty_lines_are_not_rows(size: int) -> None:
    assert cut(b"\n\r\na,b\r\n\r\n\n1,2\r\r3,4\n\n", size) == [b"a,b", b"1,2", b"3,4"]
    assert cut(b"\n\n", size) == cut(b"", size) == []


def test_other_delimiters() -> None:
    assert cut(b'a;"b\nc"\nd,"e\n', 100, ";") == [b'a;"b\nc"', b'd,"e']


def test_rejects_an_unclosed_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Unclosed):
        cut(b'a,b\n1,"2\n3,4\n', 5)
    monkeypatch.setattr(rows, "LONGEST_ROW", 100)
    endless = io.BytesIO(b'a,"' + b"\n" * 10_000)
    with pytest.raises(Unclosed):
        list(parts(endless.read, ",", 10))
    assert endless.tell() < 1000  # without reading it to the end


def test_an_incomplete_row_ends_only_at_the_end_of_the_file() -> None:
    assert row_ends(b"1,2\n3,4", ",", is_last=False).tolist() == [4]
    assert row_ends(b"1,2\n3,4", ",", is_last=True).tolist() == [4, 7]
    assert row_ends(b"1,2\r", ",", is_last=False).tolist() == []  # a line feed may follow


@pytest.mark.slow
def test_searching_for_the_end_of_a_quote_takes_little_memory() -> None:
    endless = io.BytesIO(b'"' + b"x,y\n" * (rows.LONGEST_ROW // 3))
    tracemalloc.start()
    try:
        with pytest.raises(Unclosed):
            list(parts(endless.read, ",", 1 << 20))
        assert tracemalloc.get_traced_memory()[1] < 200 << 20
    finally:
        tracemalloc.stop()
