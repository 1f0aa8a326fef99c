"""Notices that row groups are decoded again and again for a few rows each."""

from __future__ import annotations

from feedline.errors import RowGroupsReadAgain, tell

LATEST_S = 5.0
"""Seconds that decoding again takes before anything is said."""

SHARE = 1.5
"""So many times as many rows are decoded as are used. Workers that share out small row groups in order, each another
part of them in every epoch, decode as many as they use."""

_PASS = 0.9
"""Of all row groups. Who has needed so many of them begins a new pass when one comes again. A guess: shuffled batches
of several workers need most row groups in each epoch, not all of them."""


class Waste:
    """What one process has decoded, and used of it.

    Whoever goes through the data in order, or window by window, needs each row group once in a pass, and that it is
    decoded again in the next one cannot be helped. So only those count that come again in the same pass.
    """

    def __init__(self) -> None:
        self.went_back = False
        """True if the next row group is reached from the beginning of its file, again."""
        self._in_pass: set[int] = set()
        self._seconds = 0.0
        self._decoded = 0
        self._used = 0
        self._has_told = False

    def note_used(self, rows: int) -> None:
        self._used += rows

    def note_decoded(self, group: int, group_count: int, rows: int, seconds: float, *, advice: str) -> None:
        """Note a row group; tell, once, if most of the work is in vain.

        Args:
            group: its number.
            group_count: how many there are.
            rows: samples in it.
            seconds: what it took.
            advice: what to do.
        """
        if group in self._in_pass and len(self._in_pass) >= _PASS * group_count:
            self._in_pass.clear()
        is_again = group in self._in_pass or self.went_back
        self._in_pass.add(group)
        self.went_back = False
        self._decoded += rows
        self._seconds += seconds if is_again else 0
        if self._has_told or not is_again or self._seconds < LATEST_S or self._decoded < SHARE * self._used:
            return
        self._has_told = True
        tell(
            f"Row groups are decoded again and again: {self._decoded:,} rows for {self._used:,} samples, and "
            f"{self._seconds:.0f} s for what was decoded before. They do not fit into what is kept, and samples are "
            f"asked for in random order. {advice}",
            RowGroupsReadAgain,
        )
