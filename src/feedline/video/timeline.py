"""When each frame of a video is shown."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_SLACK_S = 1e-6
"""Times this close count as equal: seconds are rounded, the clock of a file is not."""


class Timeline:
    """The times of a video's frames, in the order in which they are shown.

    A clip sampler receives one and returns the positions of the frames that it wants.

    Args:
        stamps: the presentation time of each frame, in units of `unit`, in ascending order.
        unit: seconds in one unit.

    Example:
        >>> timeline = Timeline(np.arange(0, 5000, 500), Fraction(1, 5000))
        >>> len(timeline), timeline.duration_s, timeline.fps
        (10, 1.0, 10.0)
        >>> timeline.at([0, 0.25, 7]).tolist()
        [0, 2, 9]
    """

    def __init__(self, stamps: NDArray[np.int64], unit: Fraction) -> None:
        self._stamps = stamps
        self._unit = unit

    def __len__(self) -> int:
        return len(self._stamps)

    @property
    def times_s(self) -> NDArray[np.float64]:
        """Seconds from the first frame to each frame."""
        times: NDArray[np.float64] = (self._stamps - self._stamps[0]) * float(self._unit)
        return times

    @property
    def duration_s(self) -> float:
        """Seconds from the first frame to the end of the last, which is assumed to be shown as long as the others."""
        count = len(self)
        return float((self._stamps[-1] - self._stamps[0]) * self._unit) * count / (count - 1) if count > 1 else 0.0

    @property
    def fps(self) -> float:
        """Frames per second, on average; 0 for a single frame."""
        duration_s = self.duration_s
        return len(self) / duration_s if duration_s else 0.0

    def at(self, seconds: object) -> NDArray[np.int64]:
        """Return the positions of the frames shown at these times; outside the video, its first or last frame."""
        times = np.asarray(seconds, np.float64) + _SLACK_S
        found = np.searchsorted(self.times_s, times, side="right") - 1
        return np.clip(found, 0, len(self) - 1).astype(np.int64)

    def __repr__(self) -> str:
        return f"Timeline({len(self)} frames in {self.duration_s:.2f} s)"
