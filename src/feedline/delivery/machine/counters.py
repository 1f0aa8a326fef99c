"""Counters of events so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedline.errors import PerformanceWarning, warn_user
from feedline.insight.observer import Observer

_LOST_S = 5.0
"""Total cost of starting and ending workers above which the user is warned. A guess, not measured."""

_SHARE = 0.25
"""The same as a share of the passes' time. Some of the cost is not visible here: workers get ready in the background.
"""


@dataclass(slots=True)
class Counters:
    """Event counts so far; shown by `stats()`."""

    batches: int = 0
    copied_out: int = 0
    """Batches copied into ordinary memory because slots were short."""
    overflowed: int = 0
    """Batches that came in memory of their own because they had no slot or did not fit."""
    relieved: int = 0
    """Waiting tasks moved from a late worker to an idle one."""
    run_ahead: int = 0
    """Tasks started beyond the window while an early batch was late."""
    failures: int = 0
    restarts: int = 0
    """Workers replaced because they died or were stuck."""
    recycled: int = 0
    """Workers replaced because they used too much memory."""
    passes: int = 0
    """Completed passes that started their own workers."""
    passes_s: float = 0.0
    """How long they took, without the first one, which includes one-time work."""
    starts_s: float = 0.0
    """How much of that time went into starting and ending workers."""

    observer: Observer = field(default_factory=Observer)
    """Records the measurements of every batch."""

    has_warned: bool = False
    """True if the user was advised to keep the workers."""

    def as_dict(self) -> dict[str, int]:
        """Return the public counters, by the names of `stats()`."""
        return {
            "batches": self.batches,
            "failures": self.failures,
            "restarted_workers": self.restarts,
            "recycled_workers": self.recycled,
            "relieved_tasks": self.relieved,
            "run_ahead_tasks": self.run_ahead,
            "copied_batches": self.copied_out,
            "overflowed_batches": self.overflowed,
        }

    def passed(self, pass_s: float, start_s: float) -> None:
        """Record a completed pass; warn once if much of the time goes into starting workers."""
        self.passes += 1
        if self.passes == 1:
            return
        self.passes_s += pass_s
        self.starts_s += start_s
        count = self.passes - 1
        if not self.has_warned and count > 1 and self.starts_s > max(_LOST_S, self.passes_s * _SHARE):
            self.has_warned = True
            warn_user(
                f"Starting and ending the workers took {self.starts_s / count * 1e3:.0f} ms of the "
                f"{self.passes_s / count * 1e3:.0f} ms that each of the last {count} passes over this loader took: "
                "workers are started for every pass. Keep them, with persistent_workers=True (DataLoader) or "
                "persistent=True (Loader); they then keep the dataset as it was at their start. Threads "
                '(engine="thread") start at once.',
                PerformanceWarning,
            )
