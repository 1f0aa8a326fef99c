"""The outcome of one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """The outcome of a round as plain values."""

    number: int
    settings: dict[str, Any]
    command: str
    seconds: float = 0.0
    batches: int = 0
    samples: int = 0
    lost: int = 0
    repeated: int = 0
    corrupted: int = 0
    restarts: int = 0
    """Workers that died or hung and were replaced."""
    recycled: int = 0
    """Workers that had grown too large and were replaced."""
    faults: dict[str, int] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    rss_bytes: int = 0

    @property
    def is_good(self) -> bool:
        """True if nothing is wrong."""
        return not (self.lost or self.repeated or self.corrupted or self.leaks or self.problems)
