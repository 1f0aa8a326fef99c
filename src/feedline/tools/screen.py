"""What commands print: lines and tables.

Text is printed verbatim: paths, names of datasets and text from files are not ours, and must not be read as markup.
A line, or a row of a table, is one line in a file or a pipe, which have no width and no colours. On a terminal, text is
wrapped and coloured.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from feedline.datasets.framework.progress import Bar

Styled = str | tuple[str, str]
"""Text, or text and its style: "red", "yellow", "cyan" or "bold"."""

_STYLES = {"bold": 1, "red": 31, "yellow": 33, "cyan": 36}
_GAP = "   "
_LEAST_WIDTH = 12
"""A column is not made narrower than this."""


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
            width = max(_LEAST_WIDTH, self._width() - indent)
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
        """Return a progress bar on this screen."""
        return Bar(self.file, is_terminal=self.is_terminal, quiet=quiet, stays=stays)

    def _width(self) -> int:
        return shutil.get_terminal_size((100, 24)).columns

    def _styled(self, span: Styled, text: str) -> str:
        style = "" if isinstance(span, str) else span[1]
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text and self.is_terminal else text


def _text(span: Styled) -> str:
    return span if isinstance(span, str) else span[0]


def _lines(table: Table, screen: Screen) -> Iterator[str]:
    """Yield the lines of a table."""
    # From the last line upwards: a short head stands right above its column.
    upwards = itertools.zip_longest(*(head.split("\n")[::-1] for head in table.heads), fillvalue="")
    heads = list(upwards)[::-1]
    cells = [[_text(cell) for cell in row] for row in table.rows]
    widths = [max(map(len, column)) for column in zip(*heads, *cells, strict=True)]
    spare = screen._width() - sum(widths) - len(_GAP) * (len(widths) - 1)
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
