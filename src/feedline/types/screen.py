"""What a command prints, as values, and the contract for printing it: see `terminal.py`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Styled = str | tuple[str, str]
"""Text, or text and its style in the words of rich, such as `("12 %", "red")`. Plain text has no styles."""


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
    folds: bool = True
    """True to wrap cells on a terminal that is too narrow, False to cut them off."""


class Bar(Protocol):
    """A progress bar of one or more stages, one after the other; a context manager."""

    def begin(self, stage: str, total: int | None, *, done: int = 0, unit: str = "") -> None:
        """Begin a stage; the total is None if it is not known. With a unit, the speed is shown."""

    def update(self, *, done: int | None = None, advance: int = 0, note: str | None = None) -> None:
        """Report how much is done, or how much more; a note appears beside it."""

    def __enter__(self) -> Bar: ...

    def __exit__(self, *_: object) -> None: ...


class Screen(Protocol):
    """Where a command prints."""

    @property
    def is_terminal(self) -> bool:
        """False for a file or a pipe."""

    def line(self, *spans: Styled, indent: int = 0, wraps: bool = True) -> None:
        """Print a line."""

    def table(self, table: Table) -> None:
        """Print a table. In a file or a pipe, a row is one line, however long it is."""

    def bar(self, *, quiet: bool = False, threaded: bool = True, stays: bool = False) -> Bar:
        """Return a progress bar, to be entered.

        Args:
            quiet: True to show nothing.
            stays: True to print how far it came at the end; otherwise the bar disappears.
            threaded: False to draw only in `update`, and never in a thread while something is measured.
        """
