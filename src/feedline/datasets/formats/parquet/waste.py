"""Advice when the same blocks are decoded again and again."""

from __future__ import annotations

from feedline.errors import PerformanceWarning, warn_user

LATEST_S = 5.0
"""Seconds spent on repeated decoding before a warning is given."""
SHARE = 1.5
"""Warn if rows decoded exceed rows used by this factor. Workers that divide small row groups in order, each taking
different ones in every epoch, decode as many rows as they use."""

_PASS = 0.9
"""Fraction of all row groups. Once a process has needed this many, the next repeated one begins a new pass. A guess:
shuffled batches of several workers need most row groups in each epoch, not all of them."""


class Waste:
    """How many rows one process has decoded, and how many of them it used.

    A process that reads the data in order, or window by window, needs each row group once per pass. Decoding it again
    in the next pass is unavoidable, so only repeats within the same pass count.
    """

    def __init__(self) -> None:
        self._in_pass: set[int] = set()
        self._seconds = 0.0
        self._decoded = 0
        self.used = 0
        self._has_warned = False

    def note_decoded(self, group: int, group_count: int, rows: int, seconds: float, *, advice: str) -> None:
        """Record a decoded row group; warn, once, if most of the work is wasted."""
        if group in self._in_pass and len(self._in_pass) >= _PASS * group_count:
            self._in_pass.clear()
        is_again = group in self._in_pass
        self._in_pass.add(group)
        self._decoded += rows
        self._seconds += seconds if is_again else 0
        if self._has_warned or not is_again or self._seconds < LATEST_S or self._decoded < SHARE * self.used:
            return
        self._has_warned = True
        warn_user(
            f"Row groups are decoded again and again: {self._decoded:,} rows for {self.used:,} samples, and "
            f"{self._seconds:.0f} s for what was decoded before. They do not fit into what is kept, and samples are "
            f"asked for in random order. {advice}",
            PerformanceWarning,
        )
