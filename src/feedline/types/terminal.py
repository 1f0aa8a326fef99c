"""Choose who prints the lines, tables and progress bars of commands: rich on a terminal, else plain text.

Files and pipes have no width and no colours, so rich has nothing to add there: it would wrap lines at 80 columns and
fill them with spaces. Commands describe what to print with the values in `screen.py`, so every command works without
rich. Both ways print strings verbatim: paths, dataset names and text from files are not ours, and must not be read as
markup.
`tests/types/test_terminal.py` checks that only `rich_screen.py` creates consoles and text columns of rich.
"""

from __future__ import annotations

import sys
from typing import TextIO

from feedline.errors import MissingExtra
from feedline.system.optional import require
from feedline.types.screen import Screen


def has_rich() -> bool:
    """True if rich is installed."""
    try:
        require("rich", extra="tools", purpose="Colours and progress bars")
    except MissingExtra:
        return False
    return True


def open_screen(*, stderr: bool = False, file: TextIO | None = None, is_terminal: bool | None = None) -> Screen:
    r"""Return a screen on standard output, standard error or another file.

    Args:
        stderr: True for standard error.
        file: a file to print to instead.
        is_terminal: whether the file is a terminal; None to ask it.

    Example:
        >>> import io
        >>> file = io.StringIO()
        >>> open_screen(file=file).line("data:train ", ("[red]x[/red]", "bold"))
        >>> file.getvalue()
        'data:train [red]x[/red]\n'
    """
    if is_terminal is None:
        is_terminal = (file or (sys.stderr if stderr else sys.stdout)).isatty()
    if is_terminal and has_rich():
        from feedline.types.rich_screen import RichScreen

        return RichScreen(stderr=stderr, file=file, force_terminal=True)
    from feedline.types.plain_screen import PlainScreen

    return PlainScreen(stderr=stderr, file=file, is_terminal=is_terminal)
