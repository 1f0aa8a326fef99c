from __future__ import annotations

import importlib.util
import json
import math
import pickle
import re
import sys
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feedline.datasets.formats.lines import format as format_module
from feedline.datasets.formats.lines.format import JSONFormat, TextFormat, joined_values, long_integers
from feedline.errors import CorruptSource
from tests.datasets.formats.lines.writing import VALUES
from tests.sampling import examples

PIECES = [*'1,[]"\\{}:a \t\rä\x00', "NaN", "-0", "1e400", "\\u00e4"]
LIMIT = 1 << 20


def one_by_one(lines: list[bytes]) -> list[Any]:
    """Return what json.loads returns for each line, up to the first line that it rejects."""
    values = []
    for line in lines:
        try:
            values.append(json.loads(line.decode()))
        except ValueError:
            break
    return values


@settings(max_examples=examples(500))
@given(lines=st.lists(st.lists(st.sampled_from(PIECES), min_size=1, max_size=7).map("".join), max_size=6))
@example(lines=["1,1", "[1", "1]"])
@example(lines=['"a', 'a"'])
@example(lines=["[", "]"])
@example(lines=["1", ""])
def test_each_line_is_one_value(lines: list[str]) -> None:
    encoded = [line.encode() for line in lines]
    values, bad = JSONFormat(LIMIT, None).parse(encoded)
    expected = one_by_one(encoded)
    assert repr(values) == repr(expected)
    assert (None if bad is None else bad.place) == (None if len(expected) == len(lines) else len(expected))


def test_the_delimiter_between_lines_is_not_part_of_a_line() -> None:
    between = f'"{format_module._BETWEEN}"'.encode()
    assert joined_values([between, b"[%s]" % between]) == [format_module._BETWEEN, [format_module._BETWEEN]]
    for lines in ([b"1,%s,2" % between, b"[3", b"4"], [b"1", b"2,%s" % between], [b"1,%s" % between]):
        with pytest.raises(ValueError, match=r"one value|delimiter"):
            joined_values(lines)


@given(lines=st.lists(st.lists(st.sampled_from(["7" * 19, "1", "7" * 12, ".", "a", "-"]), max_size=4).map("".join)))
def test_long_integers(lines: list[str]) -> None:
    found = long_integers([line.encode() for line in lines])
    assert found == {place for place, line in enumerate(lines) if re.search(r"(?<![.\d])\d{19}", line)}


class Quick(ModuleType):
    """Stands in for orjson: rejects and changes the same values as the real one."""

    used = 0

    def loads(self, line: bytes) -> object:
        self.used += 1
        if b"NaN" in line or b"Infinity" in line or b"\\ud" in line:
            raise ValueError("unexpected character")

        def integer(text: str) -> float:
            return int(text) if -(2**63) <= int(text) < 2**64 else float(text)

        return json.loads(line, parse_int=integer)


@settings(max_examples=examples(100))
@given(values=st.lists(VALUES | st.floats() | st.integers(-(2**70), 2**70), min_size=1, max_size=8))
@example(values=[2**64, 1])
@example(values=[-(2**63) - 1])
@example(values=[math.nan, {"a": math.inf}])
@example(values=["\ud800"])
def test_orjson_gives_the_same_values(values: list[Any]) -> None:
    lines = [json.dumps(value).encode() for value in values]
    quick, before = Quick("orjson"), sys.modules.get("orjson")
    sys.modules["orjson"] = quick
    quick.__spec__ = importlib.util.spec_from_loader("orjson", None)
    try:
        found, bad = JSONFormat(LIMIT, None).parse(lines)
    finally:
        if before is None:
            del sys.modules["orjson"]
        else:
            sys.modules["orjson"] = before
    assert bad is None
    assert repr(found) == repr([json.loads(line) for line in lines])
    assert quick.used or long_integers(lines)


def test_integers_that_python_rejects() -> None:
    lines = [b"1", b"7" * 5000]
    values, bad = JSONFormat(LIMIT, None).parse(lines)
    assert values == [1]
    assert bad is not None
    assert "line 2: it is not valid JSON: Exceeds the limit" in str(bad.error("a.jsonl", 2, lines[1]))


def test_errors_name_the_line_and_quote_it_shortened_and_escaped() -> None:
    line = b"\x1b[31m" + b"a" * 200
    _, bad = JSONFormat(LIMIT, None).parse([line])
    assert bad is not None
    error = bad.error("a.jsonl", 12, line)
    assert isinstance(error, CorruptSource)
    assert "a.jsonl, line 12: " in str(error)
    assert "\x1b" not in str(error), "a terminal would interpret an escape sequence"
    assert len(str(error)) < 300


def test_formats_can_be_pickled() -> None:
    made = JSONFormat(LIMIT, {"a": "b"})
    assert made.parse([b'{"b": 1}']) == ([{"a": 1}], None)
    assert pickle.loads(pickle.dumps(made)).parse([b'{"b": 1}']) == ([{"a": 1}], None)
    assert pickle.loads(pickle.dumps(TextFormat(3))).parse([b"abc"]) == (["abc"], None)
