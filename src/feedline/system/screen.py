"""What commands print: lines, tables and progress bars.

Text is printed verbatim: paths, names of datasets and text from files are not ours, and must not be read as markup.
A line, or a row of a table, is one line in a file or a pipe, which have no width and no colours. On a terminal, text is
wrapped and coloured. Progress bars are one line that is drawn again; in a file, a bar that stays prints its last state.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TextIO

Styled = str | tuple[str, str]
"""Text, or text and its style: "red", "yellow", "cyan" or "bold"."""

_STYLES = {"bold": 1, "red": 31, "yellow": 33, "cyan": 36}
_GAP = "   "
_LEAST_WIDTH = 12
"""A column is not made narrower than this."""
_BAR_WIDTH = 24
_REDRAW_S = 0.25
_ERASED = "\r\x1b[K"


@dataclass
class Table:
    """A table with a title."""

    title: str
    heads: Sequence[str]
    """One for each column; a head may have several lines."""
    rows: list[Sequence[Styled]] = field(default_factory=list)
    numbers: Collection[int] = ()
    """Columns that are aligned on the right."""
    ends: Collection[int] = ()
    """Rows after which a group of rows ends."""


class Screen:
    r"""Where a command prints: standard output, standard error or another file.

    Args:
        stderr: True for standard error.
        file: a file to print to instead.
        is_terminal: whether the file is a terminal; None to ask it.

    Example:
        >>> Screen().table(Table("Machine", ["what", "found"], [["cores", "2"]]))
        Machine
        what    found
        -------------
        cores   2
    """

    def __init__(self, *, stderr: bool = False, file: TextIO | None = None, is_terminal: bool | None = None) -> None:
        self.file = file or (sys.stderr if stderr else sys.stdout)
        self.is_terminal = self.file.isatty() if is_terminal is None else is_terminal
        """False for a file or a pipe."""

    def line(self, *spans: Styled, indent: int = 0, wraps: bool = True) -> None:
        """Print a line in the style of its first span. On a terminal it is wrapped; turn that off for code to paste."""
        text, margin = "".join(map(_text, spans)), " " * indent
        lines = text.split("\n")
        if wraps and self.is_terminal:
            width = max(_LEAST_WIDTH, self.width() - indent)
            lines = [part for one in lines for part in textwrap.wrap(one, width, break_on_hyphens=False) or [""]]
        shown = "\n".join(margin + one if one else one for one in lines)
        first = margin + _text(spans[0]) if spans else ""
        if first and shown.startswith(first):  # otherwise it was wrapped
            shown = self._styled(spans[0], first) + shown[len(first) :]
        self.file.write(shown + "\n")

    def table(self, table: Table) -> None:
        """Print a table. On a terminal that is too narrow, the widest column is wrapped."""
        for line in _lines(table, self):
            self.file.write(line + "\n")

    def bar(self, *, quiet: bool = False, stays: bool = False) -> Bar:
        """Return a progress bar, to be entered.

        Args:
            quiet: True to show nothing while it moves.
            stays: True to print how far it came at the end; otherwise the bar disappears.
        """
        return Bar(self, drawn=self.is_terminal and not quiet, stays=stays)

    def width(self) -> int:
        """Return the columns of the terminal."""
        return shutil.get_terminal_size((100, 24)).columns

    def _styled(self, span: Styled, text: str) -> str:
        style = "" if isinstance(span, str) else span[1]
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text and self.is_terminal else text


class Bar:
    """A progress bar of one or more stages, one after the other; a context manager.

    Only `begin` and `update` draw it, on the thread that calls them, at most a few times per second.
    """

    def __init__(self, screen: Screen, *, drawn: bool, stays: bool) -> None:
        self._screen, self._is_drawn, self._stays = screen, drawn, stays
        self._stage = self._unit = self._note = ""
        self._total: int | None = None
        self._done = self._done_before = 0
        self._began_s = self._drawn_s = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_drawn:
            self._screen.file.write(_ERASED)
        if self._stays:
            self._screen.file.write(self._words() + "\n")

    def begin(self, stage: str, total: int | None, *, done: int = 0, unit: str = "") -> None:
        """Begin a stage; the total is None if it is not known. With a unit, the speed is shown.

        What is done at its beginning does not count towards the speed.
        """
        self._stage, self._total, self._unit, self._note = stage, total, unit, ""
        self._done = self._done_before = done
        self._began_s = time.monotonic()
        self._draw()

    def update(self, *, done: int | None = None, advance: int = 0, note: str | None = None) -> None:
        """Report how much is done, or how much more; a note appears beside it."""
        self._done = self._done + advance if done is None else done
        self._note = self._note if note is None else note
        if self._done == self._total or time.monotonic() - self._drawn_s >= _REDRAW_S:
            self._draw()

    def _draw(self) -> None:
        if not self._is_drawn:
            return
        self._drawn_s = time.monotonic()
        share = min(1.0, self._done / self._total) if self._total else 0.0
        filled = int(_BAR_WIDTH * share)
        bar = f"[{'#' * filled}{' ' * (_BAR_WIDTH - filled)}]  " if self._total else ""
        self._screen.file.write(_ERASED + (bar + self._words())[: self._screen.width() - 1])
        self._screen.file.flush()

    def _words(self) -> str:
        elapsed_s = max(time.monotonic() - self._began_s, 1e-9)
        count = f"{self._done:,}" if self._total is None else f"{self._done:,}/{self._total:,}"
        speed = f"{(self._done - self._done_before) / elapsed_s:,.0f} {self._unit}/s" if self._unit else ""
        return "  ".join(part for part in (self._stage, count, speed, self._note) if part)


def _text(span: Styled) -> str:
    return span if isinstance(span, str) else span[0]


def _lines(table: Table, screen: Screen) -> Iterator[str]:
    """Yield the lines of a table."""
    # From the last line upwards: a short head stands right above its column.
    upwards = itertools.zip_longest(*(head.split("\n")[::-1] for head in table.heads), fillvalue="")
    heads = list(upwards)[::-1]
    cells = [[_text(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*heads, *cells, strict=True)]
    spare = screen.width() - sum(widths) - len(_GAP) * (len(widths) - 1)
    if screen.is_terminal and spare < 0:
        widest = widths.index(max(widths))
        widths[widest] = max(_LEAST_WIDTH, widths[widest] + spare)

    def line(row: Sequence[str], spans: Sequence[Styled]) -> str:
        padded = [
            screen._styled(span, text.rjust(width) if place in table.numbers else text.ljust(width))
            for place, (text, width, span) in enumerate(zip(row, widths, spans, strict=True))
        ]
        return _GAP.join(padded).rstrip()

    rule = "-" * (sum(widths) + len(_GAP) * (len(widths) - 1))
    yield table.title
    yield from (line(head, head) for head in heads)
    yield rule
    for place, (row, spans) in enumerate(zip(cells, table.rows, strict=True)):
        wrapped = [textwrap.wrap(text, width) or [""] for text, width in zip(row, widths, strict=True)]
        parts = itertools.zip_longest(*wrapped, fillvalue="") if screen.is_terminal else [row]
        yield from (line(part, spans) for part in parts)
        if place in table.ends and place + 1 < len(cells):
            yield rule
