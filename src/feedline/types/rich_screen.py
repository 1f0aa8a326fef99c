"""Lines, tables and progress bars with rich. Import it only where rich is installed: see `terminal.py`.

rich reads `[red]` as markup and `:train:` as an emoji in every string that it prints, including table cells and
progress bars. Both are off here.
"""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table as RichTable
from rich.text import Text

from feedline.types.screen import Bar, Styled, Table


# Any: options of rich's Console.
def plain_console(**options: Any) -> Console:
    r"""Create a console that prints strings verbatim.

    Example:
        >>> import io
        >>> console = plain_console(file=io.StringIO())
        >>> console.print("data:train [red]x[/red]")
        >>> console.file.getvalue()
        'data:train [red]x[/red]\n'
    """
    return Console(markup=False, emoji=False, **options)


class RichScreen:
    """A `Screen` that rich draws on a terminal."""

    # Any: options of rich's Console.
    def __init__(self, **options: Any) -> None:
        self._console = plain_console(**options)

    @property
    def is_terminal(self) -> bool:
        """False for a file or a pipe."""
        return self._console.is_terminal

    def line(self, *spans: Styled, indent: int = 0, wraps: bool = True) -> None:
        """Print a line."""
        if wraps:
            self._console.print(Padding(Text.assemble(*spans), (0, 0, 0, indent)) if indent else Text.assemble(*spans))
        else:
            self._console.print(Text.assemble(" " * indent, *spans), soft_wrap=True)

    def table(self, table: Table) -> None:
        """Print a table, with one line per row unless the terminal is too narrow."""
        self._console.print(_drawn(table))

    def bar(self, *, quiet: bool = False, threaded: bool = True, stays: bool = False) -> Bar:
        """Return a progress bar, to be entered."""
        return _RichBar(self._console, quiet=quiet, threaded=threaded, stays=stays)


def _drawn(table: Table) -> RichTable:
    options: dict[str, Any] = {"box": SIMPLE_HEAD, "show_edge": False, "pad_edge": False}
    drawn = RichTable(title=Text(table.title), title_justify="left", collapse_padding=not table.folds, **options)
    for place, head in enumerate(table.heads):
        align: Any = "right" if place in table.numbers else "left"
        narrow: dict[str, Any] = {"overflow": "fold", "min_width": 5} if table.folds else {"no_wrap": True}
        drawn.add_column(Text(head), justify=align, **narrow)
    for place, row in enumerate(table.rows):
        drawn.add_row(*(Text.assemble(cell) for cell in row), end_section=place in table.ends)
    return drawn


class _Speed(ProgressColumn):
    def render(self, task: Task) -> Text:
        has_speed = task.speed is not None and task.fields["unit"]
        return Text(f"{task.speed:,.0f} {task.fields['unit']}/s" if has_speed else "")


class _RichBar:
    """A `Bar` that rich draws."""

    def __init__(self, console: Console, *, quiet: bool, threaded: bool, stays: bool) -> None:
        texts = [TextColumn(form, markup=False) for form in ("{task.description}", "{task.fields[note]}")]
        last = (TimeRemainingColumn(),) if threaded else ()
        columns = (texts[0], BarColumn(), MofNCompleteColumn(), _Speed(), texts[1], *last)
        self._progress = Progress(
            *columns, console=console, transient=not stays, refresh_per_second=4, auto_refresh=threaded, disable=quiet
        )
        self._refresh = not threaded
        self._tasks: list[Any] = []  # ids of rich's tasks

    def __enter__(self) -> _RichBar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def begin(self, stage: str, total: int | None, *, done: int = 0, unit: str = "") -> None:
        """Begin a stage. What is done at its beginning does not count towards the speed."""
        self._tasks.append(self._progress.add_task(stage, total=total, completed=done, unit=unit, note=""))

    def update(self, *, done: int | None = None, advance: int = 0, note: str | None = None) -> None:
        """Report how much is done."""
        fields: dict[str, Any] = {} if note is None else {"note": note}
        fields.update({"advance": advance} if done is None else {"completed": done})
        self._progress.update(self._tasks[-1], refresh=self._refresh, **fields)
