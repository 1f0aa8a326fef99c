"""What happened so far, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from feedline.errors import PerformanceWarning, warn_user
from feedline.insight.observer import Observer

_LOST_S = 5.0
"""What starting and ending workers may cost in all before it is told. A guess, not measured."""

_SHARE = 0.25
"""Which part of the passes that may be. Part of what it costs is not seen here: workers get ready beside the rest."""


@dataclass(slots=True)
class Counters:
    """What happened so far; shown by `stats()`."""

    batches: int = 0
    copied_out: int = 0
    """Batches copied into ordinary memory because slots were short."""
    overflowed: int = 0
    """Batches that came in memory of their own because they had no slot or did not fit."""
    relieved: int = 0
    """Waiting tasks that went from a late worker to an idle one."""
    run_ahead: int = 0
    """Tasks begun beyond the window while an early batch was late."""
    failures: int = 0
    restarts: int = 0
    """Workers that were replaced because they died or were stuck."""
    recycled: int = 0
    """Workers that were replaced because they had taken too much memory."""
    passes: int = 0
    """Passes that came to their end, with workers of their own."""
    passes_s: float = 0.0
    """How long they took, without the first one, for which much is done that is not done again."""
    starts_s: float = 0.0
    """How much of that went into starting and ending the workers."""

    observer: Observer = field(default_factory=Observer)
    """What is measured of every batch."""

    told: bool = False
    """True if the user was told to keep the workers."""

    def as_dict(self) -> dict[str, int]:
        """Return what users see, by the names of `stats()`."""
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
        """Note a pass that has come to its end; tells once if much of the time goes into starting workers."""
        self.passes += 1
        if self.passes == 1:
            return
        self.passes_s += pass_s
        self.starts_s += start_s
        count = self.passes - 1
        if not self.told and count > 1 and self.starts_s > max(_LOST_S, self.passes_s * _SHARE):
            self.told = True
            warn_user(
                f"Starting and ending the workers took {self.starts_s / count * 1e3:.0f} ms of the "
                f"{self.passes_s / count * 1e3:.0f} ms that each of the last {count} passes over this loader took: "
                "workers are started for every pass. Keep them, with persistent_workers=True (DataLoader) or "
                "persistent=True (Loader); they then keep the dataset as it was at their start. Threads "
                '(engine="thread") start at once.',
                PerformanceWarning,
            )
