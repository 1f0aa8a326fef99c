"""Create the consoles and progress bars of every command in one place.

rich reads `[red]` as markup and `:train:` as an emoji in every string that it prints, including table cells and
progress bars. Paths, dataset names and text from files are not ours, so both are off here. Style our own text with
`rich.text.Text`. `tests/types/test_terminal.py` checks that no other file creates a console or a text column.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn


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
    from rich.console import Console

    return Console(markup=False, emoji=False, **options)


# Any: options of rich's Progress.
def plain_progress(*columns: str | ProgressColumn, console: Console, **options: Any) -> Progress:
    """Create a progress bar. Columns are rich's, or formats such as `"{task.description}"`, printed verbatim."""
    from rich.progress import Progress, TextColumn

    shown = (TextColumn(column, markup=False) if isinstance(column, str) else column for column in columns)
    return Progress(*shown, console=console, **options)
