"""Notices that row groups are decoded again and again for a few rows each."""

from __future__ import annotations

from feedline.errors import RowGroupsReadAgain, tell

LATEST_S = 5.0
"""Seconds that decoding takes before anything is said."""

SHARE = 8
"""So many times as many rows are decoded as are used. One epoch in order, or by windows, decodes about as many."""


class Waste:
    """What one process has decoded, and used of it."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._decoded = 0
        self._used = 0
        self._has_told = False

    def note_used(self, rows: int) -> None:
        self._used += rows

    def note_decoded(self, rows: int, seconds: float, *, has_dropped: bool, advice: str) -> None:
        """Note a row group; tell, once, if most of the work is in vain.

        Args:
            rows: samples in it.
            seconds: what it took.
            has_dropped: another one had to go for it.
            advice: what to do.
        """
        self._decoded += rows
        self._seconds += seconds
        if self._has_told or not has_dropped or self._seconds < LATEST_S or self._decoded < SHARE * self._used:
            return
        self._has_told = True
        tell(
            f"Row groups are decoded again and again: {self._decoded:,} rows in {self._seconds:.0f} s, for "
            f"{self._used:,} samples. They do not fit into what is kept, and samples are asked for in random order. "
            f"{advice}",
            RowGroupsReadAgain,
        )
