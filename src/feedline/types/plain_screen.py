"""Lines, tables and progress bars as plain text, for machines without rich: see `terminal.py`."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TextIO

from feedline.types.screen import Bar, Styled, Table

_GAP = "   "
_EVERY_S = 0.25
"""Minimum number of seconds between two drawings of a bar."""
_WIDEST_BAR = 78


class PlainScreen:
    r"""A `Screen` that needs no other package. Lines are never wrapped; a terminal does that.

    Example:
        >>> PlainScreen().table(Table("Machine", ["what", "found"], [["cores", "2"]]))
        Machine
        what    found
        -------------
        cores   2
    """

    def __init__(self, *, stderr: bool = False, file: TextIO | None = None, is_terminal: bool | None = None) -> None:
        self._file = file or (sys.stderr if stderr else sys.stdout)
        self._is_terminal = self._file.isatty() if is_terminal is None else is_terminal
        self._shown = ""

    @property
    def is_terminal(self) -> bool:
        """False for a file or a pipe."""
        return self._is_terminal

    def line(self, *spans: Styled, indent: int = 0, wraps: bool = True) -> None:
        """Print a line."""
        shown = self._shown
        self.overwrite("")
        self._file.write(" " * indent + "".join(map(_text, spans)) + "\n")
        self.overwrite(shown)

    def table(self, table: Table) -> None:
        """Print a table, with one line per row."""
        for line in _lines(table):
            self.line(line)

    def bar(self, *, quiet: bool = False, threaded: bool = True, stays: bool = False) -> Bar:
        """Return a progress bar, to be entered. It is drawn only in `update`, and only on a terminal."""
        return _PlainBar(self, quiet=quiet or not self._is_terminal, stays=stays and not quiet)

    def overwrite(self, text: str) -> None:
        """Write a text in place of the one that was written before, and stay on its line."""
        if text != self._shown:
            self._file.write("\r" + " " * len(self._shown) + "\r" + text)
            self._file.flush()
        self._shown = text


def _text(span: Styled) -> str:
    return span if isinstance(span, str) else span[0]


def _lines(table: Table) -> Iterator[str]:
    # From the last line upwards: a short head stands right above its column.
    upwards = itertools.zip_longest(*(head.split("\n")[::-1] for head in table.heads), fillvalue="")
    heads = list(upwards)[::-1]
    rows = [[_text(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*heads, *rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if place in table.numbers else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return _GAP.join(padded).rstrip()

    rule = "-" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    yield table.title
    yield from map(line, heads)
    yield rule
    for place, row in enumerate(rows):
        yield line(row)
        if place in table.ends and place + 1 < len(rows):
            yield rule


class _PlainBar:
    """A `Bar` as one line of text."""

    def __init__(self, screen: PlainScreen, *, quiet: bool, stays: bool) -> None:
        self._screen = screen
        self._is_quiet, self._stays = quiet, stays
        self._stage = self._unit = self._note = ""
        self._total: int | None = None
        self._done = self._done_before = 0
        self._began_s = self._drawn_s = 0.0

    def __enter__(self) -> _PlainBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._screen.overwrite("")
        if self._stays:
            self._screen.line(self._words())

    def begin(self, stage: str, total: int | None, *, done: int = 0, unit: str = "") -> None:
        """Begin a stage. What is done at its beginning does not count towards the speed."""
        self._stage, self._total, self._unit, self._note = stage, total, unit, ""
        self._done = self._done_before = done
        self._began_s, self._drawn_s = time.monotonic(), 0.0

    def update(self, *, done: int | None = None, advance: int = 0, note: str | None = None) -> None:
        """Report how much is done."""
        self._done = self._done + advance if done is None else done
        self._note = self._note if note is None else note
        now_s = time.monotonic()
        if self._is_quiet or (now_s - self._drawn_s < _EVERY_S and self._done != self._total):
            return
        self._drawn_s = now_s
        self._screen.overwrite(self._words())

    def _words(self) -> str:
        elapsed_s = max(time.monotonic() - self._began_s, 1e-9)
        count = f"{self._done:,}" if self._total is None else f"{self._done:,}/{self._total:,}"
        speed = f"{(self._done - self._done_before) / elapsed_s:,.0f} {self._unit}/s" if self._unit else ""
        words = "  ".join(part for part in (self._stage, count, speed, self._note) if part)
        return words if len(words) <= _WIDEST_BAR else f"{words[: _WIDEST_BAR - 3]}..."
