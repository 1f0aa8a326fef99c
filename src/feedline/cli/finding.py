"""What a look at something has shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, what was found, and what to change."""

    subject: str
    found: str
    advice: str | None = None
    """None if there is nothing to change."""
