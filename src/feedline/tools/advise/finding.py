"""A finding: the problem, the fix, the evidence and the expected gain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from feedline.insight.worker_model import LEAST_GAIN
from feedline.types import JsonObject


@dataclass(frozen=True)
class Finding:
    """One finding."""

    name: str
    problem: str
    """The problem in one sentence of fewer than fifteen words; an observation if there is nothing to change."""
    fix: str | None = None
    """What to change, as a sentence; None if there is nothing to change."""
    code: str | None = None
    """The fix as lines of Python or shell. They work when pasted."""
    gain: float | None = None
    """The factor by which samples per second would increase; None if the finding is not about speed."""
    is_serious: bool = False
    """True if the problem gives wrong data, ends the program or makes it several times slower."""
    evidence: str = ""
    """Observations and measurements, with figures."""
    margin: float | None = None
    """The measured time divided by the limit above which it counts; None if nothing was timed."""

    @property
    def severity(self) -> str:
        """One of "serious", "advice", "unsure", and "fine" if there is nothing to change."""
        if self.name == NOT_SURE:
            return "unsure"
        return "fine" if self.fix is None else "serious" if self.is_serious else "advice"

    @property
    def has_gain(self) -> bool:
        """True if the gain is worth mentioning."""
        return (self.gain or 1.0) >= LEAST_GAIN

    def __str__(self) -> str:
        gain = f"Gain: {self.gain:.1f}x." if self.has_gain else ""
        parts = (sentence(self.problem), self.fix or "", gain, sentence(self.evidence))
        return f"{self.name}: {' '.join(filter(None, parts))}"

    def as_dict(self) -> JsonObject:
        """Return the finding for programs."""
        values = asdict(self)
        del values["margin"]
        return {**values, "severity": self.severity}


class Findings(list[Finding]):
    """Findings in order: serious ones first, then by gain. `str()` gives one line per finding."""

    def __init__(self, findings: Iterable[Finding] = ()) -> None:
        super().__init__(sorted(findings, key=lambda finding: (not finding.is_serious, -(finding.gain or 1.0))))

    def __str__(self) -> str:
        return "\n".join(map(str, self)) or NOTHING


NOTHING = "Found nothing to change."
NOT_SURE = "not-sure"
"""The name of the finding that lists what could not be decided on a busy machine."""


def beyond_noise(findings: Iterable[Finding], floor: float, noise: str) -> list[Finding]:
    """Keep findings that noise cannot have caused, and list the others in one `not-sure` finding.

    Args:
        findings: all findings, whether from counts or from times.
        floor: the share by which times of equal work differed: 0.2 if a time may be off by 20 %.
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


_MOST_GAIN = 100.0


def gain_of(now_s: float, saved_s: float) -> float:
    """Return the speedup if each sample takes `saved_s` less; at most 100.

    Example:
        >>> gain_of(4.0, 2.0), gain_of(1.0, 1.0)
        (2.0, 100.0)
    """
    return round(now_s / max(now_s - max(saved_s, 0.0), now_s / _MOST_GAIN), 2)


def sentence(text: str) -> str:
    """Return a text with a full stop at its end; an empty text stays empty."""
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."
