"""A finding: what was found, what shows it, what to change and what that would gain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    name: str
    evidence: str
    """What was seen or measured, with figures."""
    fix: str | None = None
    """What to change, as a sentence; None if there is nothing to change."""
    code: str | None = None
    """The same as a line or two of Python, or of a shell."""
    gain: float | None = None
    """How many times as many samples there would be in a second; None if it is about something else."""
    is_serious: bool = False
    """True for what gives wrong data, ends the program or makes it several times slower."""

    @property
    def severity(self) -> str:
        """One of "serious", "advice", and "fine" if there is nothing to change."""
        return "fine" if self.fix is None else "serious" if self.is_serious else "advice"

    def __str__(self) -> str:
        gain = f" Gain: {self.gain:.1f}x." if (self.gain or 1.0) >= SHOWN_GAIN else ""
        return f"{self.name}: {self.evidence.rstrip('.')}. {self.fix or ''}{gain}".rstrip()

    # Any: values that JSON keeps.
    def as_dict(self) -> dict[str, Any]:
        """Return the finding for programs."""
        return {**asdict(self), "severity": self.severity}


class Findings(list[Finding]):
    """Findings in order: what is serious first, and then what gains most. Printed, they are a line each."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        super().__init__(sorted(findings, key=lambda finding: (not finding.is_serious, -(finding.gain or 1.0))))

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or NOTHING


NOTHING = "Nothing that ought to be changed was found."
SHOWN_GAIN = 1.05
"""Less is not told."""


_MOST_GAIN = 100.0
_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))


def gain_of(now_s: float, saved_s: float) -> float:
    """Return how many times as many samples come if each takes less by `saved_s`; more than 100 is not told.

    Example:
        >>> gain_of(4.0, 2.0), gain_of(1.0, 1.0)
        (2.0, 100.0)
    """
    return round(now_s / max(now_s - max(saved_s, 0.0), now_s / _MOST_GAIN), 2)


def seconds_text(seconds: float) -> str:
    """Return a time for people.

    Example:
        >>> seconds_text(0.00234), seconds_text(2.5), seconds_text(4e-6)
        ('2.3 ms', '2.5 s', '4.0 us')
    """
    unit, factor = next((one for one in _UNITS if seconds * one[1] >= 1), _UNITS[-1])
    return f"{seconds * factor:.1f} {unit}"
