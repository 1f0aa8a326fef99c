"""How much may be under way, and how long it may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How much may be under way, and how long it may take."""

    window: int
    """Batches in flight."""
    depth: int
    """Tasks a worker may have at once."""
    timeout_s: float = 0.0
    """The longest wait for a batch; 0 for no limit."""
    kills_stuck: bool = False
    """True to replace a worker that takes longer than that, as if it had died."""
    deepens: bool = False
    """True if there may be more in flight while batches are small and made in no time."""
