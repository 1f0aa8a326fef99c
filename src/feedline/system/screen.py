"""What commands print: lines, tables and progress bars.

Text is printed verbatim: paths, names of datasets and text from files are not ours, and must not be read as markup.
A line, or a row of a table, is one line in a file or a pipe, which have no width and no colours. On a terminal, text is
wrapped and coloured.

rich draws the progress bars if it is installed. Without it, or in a file, only a bar that stays prints its last state.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from feedline.errors import MissingExtra
from feedline.system.optional import require

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
        self._file = file or (sys.stderr if stderr else sys.stdout)
        self.is_terminal = self._file.isatty() if is_terminal is None else is_terminal
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
        self._file.write(shown + "\n")

    def table(self, table: Table) -> None:
        """Print a table. On a terminal that is too narrow, the widest column is wrapped."""
        for line in _lines(table, self):
            self._file.write(line + "\n")

    def bar(self, *, quiet: bool = False, threaded: bool = True, stays: bool = False) -> Bar:
        """Return a progress bar, to be entered.

        Args:
            quiet: True to show nothing.
            stays: True to print how far it came at the end; otherwise the bar disappears.
            threaded: False to draw only in `update`, and never in a thread while something is measured.
        """
        return Bar(self._file, drawn=self.is_terminal and not quiet and has_rich(), threaded=threaded, stays=stays)

    def _width(self) -> int:
        return shutil.get_terminal_size((100, 24)).columns

    def _styled(self, span: Styled, text: str) -> str:
        style = "" if isinstance(span, str) else span[1]
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if style and text and self.is_terminal else text


class Bar:
    """A progress bar of one or more stages, one after the other; a context manager."""

    def __init__(self, file: TextIO, *, drawn: bool, threaded: bool, stays: bool) -> None:
        self._file, self._stays = file, stays
        self._progress: Any = _progress(file, threaded=threaded, stays=stays) if drawn else None  # rich's Progress
        self._refresh = not threaded
        self._stage = self._unit = self._note = ""
        self._total: int | None = None
        self._done = self._done_before = 0
        self._began_s = 0.0
        self._task: Any = None  # rich's id of the stage

    def __enter__(self) -> Bar:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()
        elif self._stays:
            self._file.write(self._words() + "\n")

    def begin(self, stage: str, total: int | None, *, done: int = 0, unit: str = "") -> None:
        """Begin a stage; the total is None if it is not known. With a unit, the speed is shown.

        What is done at its beginning does not count towards the speed.
        """
        self._stage, self._total, self._unit, self._note = stage, total, unit, ""
        self._done = self._done_before = done
        self._began_s = time.monotonic()
        if self._progress is not None:
            self._task = self._progress.add_task(stage, total=total, completed=done, unit=unit, note="")

    def update(self, *, done: int | None = None, advance: int = 0, note: str | None = None) -> None:
        """Report how much is done, or how much more; a note appears beside it."""
        self._done = self._done + advance if done is None else done
        self._note = self._note if note is None else note
        if self._progress is not None:
            self._progress.update(self._task, completed=self._done, note=self._note, refresh=self._refresh)

    def _words(self) -> str:
        elapsed_s = max(time.monotonic() - self._began_s, 1e-9)
        count = f"{self._done:,}" if self._total is None else f"{self._done:,}/{self._total:,}"
        speed = f"{(self._done - self._done_before) / elapsed_s:,.0f} {self._unit}/s" if self._unit else ""
        return "  ".join(part for part in (self._stage, count, speed, self._note) if part)


def has_rich() -> bool:
    """True if rich is installed."""
    try:
        require("rich", extra="tools", purpose="Progress bars")
    except MissingExtra:
        return False
    return True


# Any: rich's Console, and its options.
def plain_console(**options: Any) -> Any:
    r"""Create a console of rich that prints strings verbatim; by default it reads `[red]` as markup and `:train:` too.

    Example:
        >>> import io
        >>> console = plain_console(file=io.StringIO())
        >>> console.print("data:train [red]x[/red]")
        >>> console.file.getvalue()
        'data:train [red]x[/red]\n'
    """
    from rich.console import Console

    return Console(markup=False, emoji=False, **options)


def _progress(file: TextIO, *, threaded: bool, stays: bool) -> Any:  # rich's Progress
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Task) -> Text:
            has_speed = task.speed is not None and task.fields["unit"]
            return Text(f"{task.speed:,.0f} {task.fields['unit']}/s" if has_speed else "")

    stage, note = (TextColumn(form, markup=False) for form in ("{task.description}", "{task.fields[note]}"))
    columns = (stage, BarColumn(), MofNCompleteColumn(), Speed(), note, *((Remaining(),) if threaded else ()))
    console = plain_console(file=file, force_terminal=True)
    return Progress(*columns, console=console, transient=not stays, refresh_per_second=4, auto_refresh=threaded)


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
