"""Progress bars: one line on a terminal, drawn again by the thread that works."""

from __future__ import annotations

import shutil
import sys
import time
from typing import TextIO

_WIDTH = 24
_REDRAW_S = 0.25
_ERASED = "\r\x1b[K"


class Bar:
    """A progress bar of one or more stages, one after the other; a context manager.

    Only `begin` and `update` draw it, at most a few times per second.

    Args:
        file: where to draw it; standard error by default. In a file that is no terminal, nothing moves.
        is_terminal: whether the file is a terminal; None to ask it.
        quiet: True to show nothing while it moves.
        stays: True to print how far it came at the end, even to a file; otherwise the bar disappears.
        after_s: the bar appears if the work takes longer than this.
    """

    def __init__(
        self,
        file: TextIO | None = None,
        *,
        is_terminal: bool | None = None,
        quiet: bool = False,
        stays: bool = False,
        after_s: float = 0.0,
    ) -> None:
        self._file = sys.stderr if file is None else file
        self._is_drawn = not quiet and (self._file.isatty() if is_terminal is None else is_terminal)
        self._stays, self._after_s = stays, after_s
        self._stage = self._unit = self._note = ""
        self._total: int | None = None
        self._done = self._done_before = 0
        self._began_s = self._drawn_s = 0.0

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._drawn_s:
            self._file.write(_ERASED)
        if self._stays:
            self._file.write(self._words() + "\n")

    def begin(self, stage: str, total: int | None, *, done: int = 0, unit: str = "") -> None:
        """Begin a stage; the total is None if it is not known. With a unit, the speed is shown.

        What is done at its beginning does not count towards the speed.
        """
        self._stage, self._total, self._unit, self._note = stage, total, unit, ""
        self._done = self._done_before = done
        self._began_s = time.monotonic()
        self._draw(self._began_s)

    def update(self, *, done: int | None = None, advance: int = 0, note: str | None = None) -> None:
        """Report how much is done, or how much more; a note appears beside it."""
        self._done = self._done + advance if done is None else done
        self._note = self._note if note is None else note
        now_s = time.monotonic()
        if self._done == self._total or now_s - self._drawn_s >= _REDRAW_S:
            self._draw(now_s)

    def _draw(self, now_s: float) -> None:
        if not self._is_drawn or now_s - self._began_s < self._after_s:
            return
        self._drawn_s = now_s
        filled = int(_WIDTH * min(1.0, self._done / self._total)) if self._total else 0
        bar = f"[{'#' * filled}{' ' * (_WIDTH - filled)}]  " if self._total else ""
        columns = shutil.get_terminal_size((100, 24)).columns
        self._file.write(_ERASED + (bar + self._words())[: columns - 1])
        self._file.flush()

    def _words(self) -> str:
        elapsed_s = max(time.monotonic() - self._began_s, 1e-9)
        count = f"{self._done:,}" if self._total is None else f"{self._done:,}/{self._total:,}"
        speed = f"{(self._done - self._done_before) / elapsed_s:,.0f} {self._unit}/s" if self._unit else ""
        return "  ".join(part for part in (self._stage, count, speed, self._note) if part)
