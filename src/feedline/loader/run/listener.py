"""Callbacks that get a loader's stats while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feedline.insight.stats import Stats


@dataclass
class Listener:
    """A callback that is called with a loader's stats at intervals."""

    stats: Callable[[], Stats | None]
    """Returns the stats; None if the loader is gone."""
    callback: Callable[[Stats], object]
    every_s: float
    next_s: float = 0.0

    def call_if_due(self) -> None:
        """Call the callback if `every_s` has passed."""
        now_s = time.monotonic()
        stats = self.stats() if now_s >= self.next_s else None
        if stats is not None:
            self.next_s = now_s + self.every_s
            self.callback(stats)

    def __reduce__(self) -> tuple[object, ...]:
        return type(None), ()  # copies of the loader have no listener
