"""Counters of events so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedline.insight.observer import Observer


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

    observer: Observer = field(default_factory=Observer)
    """Records the measurements of every batch."""

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
