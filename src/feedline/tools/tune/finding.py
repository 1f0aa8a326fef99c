"""A finding: what is wrong, what to change, what shows it and what the change would gain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from feedline.insight.worker_model import LEAST_GAIN


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    name: str
    problem: str
    """What is wrong, in one sentence of fewer than fifteen words; what was seen, if there is nothing to change."""
    fix: str | None = None
    """What to change, as a sentence; None if there is nothing to change."""
    code: str | None = None
    """The same as lines of Python, or of a shell. They work when pasted."""
    gain: float | None = None
    """How many times as many samples there would be in a second; None if it is about something else."""
    is_serious: bool = False
    """True for what gives wrong data, ends the program or makes it several times slower."""
    evidence: str = ""
    """What was seen or measured, with figures."""
    margin: float | None = None
    """How far a measured time is beyond the limit from which on it counts, as a factor; None if nothing was timed."""

    @property
    def severity(self) -> str:
        """One of "serious", "advice", "unsure", and "fine" if there is nothing to change."""
        if self.name == NOT_SURE:
            return "unsure"
        return "fine" if self.fix is None else "serious" if self.is_serious else "advice"

    @property
    def has_gain(self) -> bool:
        """True if it gains so much that it is worth a word."""
        return (self.gain or 1.0) >= LEAST_GAIN

    def __str__(self) -> str:
        gain = f"Gain: {self.gain:.1f}x." if self.has_gain else ""
        parts = (sentence(self.problem), self.fix or "", gain, sentence(self.evidence))
        return f"{self.name}: {' '.join(filter(None, parts))}"

    # Any: values that JSON keeps.
    def as_dict(self) -> dict[str, Any]:
        """Return the finding for programs."""
        facts = asdict(self)
        del facts["margin"]
        return {**facts, "severity": self.severity}


class Findings(list[Finding]):
    """Findings in order: what is serious first, and then what gains most. Printed, they are a line each."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        super().__init__(sorted(findings, key=lambda finding: (not finding.is_serious, -(finding.gain or 1.0))))

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or NOTHING


NOTHING = "Nothing that ought to be changed was found."
NOT_SURE = "not-sure"
"""The name of the finding that says what could not be decided on a busy machine."""


def beyond_noise(findings: Iterable[Finding], floor: float, noise: str) -> list[Finding]:
    """Keep what the noise of the machine cannot have caused, and say in one finding what it can.

    Args:
        findings: what was found, whether by counting or by timing.
        floor: by how much equal work differed in time, as a share: 0.2 if a time may be off by 20 %.
        noise: the same in words, as evidence.

    Example:
        >>> slow = Finding("slow-collate", "Collating takes long.", "Stack arrays.", margin=1.1)
        >>> [finding.name for finding in beyond_noise([slow], 0.05, "")]
        ['slow-collate']
        >>> print(beyond_noise([slow], 0.5, "The same loop took 1.0 to 1.5 ms.")[0])
        not-sure: Not sure about slow-collate: the machine is too noisy. Run it again on a quiet machine, or with more \
--seconds. The same loop took 1.0 to 1.5 ms.
    """
    kept, unsure = list[Finding](), list[str]()
    for finding in findings:
        if finding.margin is not None and finding.margin < 1 + floor:
            unsure.append(finding.name)
        else:
            is_small = finding.gain is not None and finding.gain < 1 + floor
            kept.append(replace(finding, gain=None) if is_small else finding)
    if unsure:
        about = ", ".join(dict.fromkeys(unsure))
        fix = "Run it again on a quiet machine, or with more --seconds."
        kept.append(Finding(NOT_SURE, f"Not sure about {about}: the machine is too noisy.", fix, evidence=noise))
    return kept


def margin_of(times: float, computing: float) -> float:
    """Return a margin by how many times a time is beyond its limit, and by the share of it that was computing.

    Only computing takes longer on a noisy machine: what sleeps for 3 s does so anywhere.

    Example:
        >>> margin_of(1.5, computing=1.0), margin_of(1.5, computing=0.1)
        (1.5, 6.0)
    """
    return 1 + (times - 1) / max(computing, 0.01)


_MOST_GAIN = 100.0
_UNITS = (("s", 1.0), ("ms", 1e3), ("us", 1e6))


def gain_of(now_s: float, saved_s: float) -> float:
    """Return how many times as many samples come if each takes less by `saved_s`; at most 100.

    Example:
        >>> gain_of(4.0, 2.0), gain_of(1.0, 1.0)
        (2.0, 100.0)
    """
    return round(now_s / max(now_s - max(saved_s, 0.0), now_s / _MOST_GAIN), 2)


def sentence(text: str) -> str:
    """Return a text with a full stop at its end; nothing for nothing."""
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def seconds_text(seconds: float) -> str:
    """Return a time for people.

    Example:
        >>> seconds_text(0.00234), seconds_text(2.5), seconds_text(4e-6)
        ('2.3 ms', '2.5 s', '4.0 us')
    """
    unit, factor = next((one for one in _UNITS if seconds * one[1] >= 1), _UNITS[-1])
    return f"{seconds * factor:.1f} {unit}"
