"""The summary of a drill."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_WARM_UP = 30
"""Rounds after which a process is as large as it should get: every engine, dataset and start method has been used."""

_SETTLED = 20
"""The number of rounds whose medians are compared, after the warm-up and at the end."""

_GROWTH_BYTES = 64 << 20
"""How much a process may grow after its warm-up. Allocators keep some freed memory; a leak of one batch per round is
more after a few hundred rounds."""


@dataclass
class Summary:
    """Figures of all rounds so far."""

    seed: int
    seconds: float = 0.0
    rounds: int = 0
    batches: int = 0
    samples: int = 0
    lost: int = 0
    repeated: int = 0
    corrupted: int = 0
    leaks: int = 0
    restarts: int = 0
    recycled: int = 0
    growth_bytes: int = 0
    """The most that a process has grown after its warm-up."""
    faults: Counter[str] = field(default_factory=Counter)
    failures: list[dict[str, Any]] = field(default_factory=list)
    """Rounds in which something was wrong: what, their settings and the command that repeats them."""
    _resident: list[int] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        """True if nothing is wrong."""
        return not (self.failures or self.lost or self.repeated or self.corrupted or self.leaks or self.grows)

    @property
    def grows(self) -> bool:
        """True if a process kept growing."""
        return self.growth_bytes > _GROWTH_BYTES

    def add(self, outcome: dict[str, Any]) -> None:
        """Add the outcome of a round."""
        self.rounds += 1
        for name in ("batches", "samples", "lost", "repeated", "corrupted", "restarts", "recycled"):
            setattr(self, name, getattr(self, name) + outcome[name])
        self.leaks += len(outcome["leaks"])
        self.faults.update(outcome["faults"])
        self._resident.append(outcome["rss_bytes"])
        if len(self._resident) >= _WARM_UP + 2 * _SETTLED:
            first = statistics.median(self._resident[_WARM_UP : _WARM_UP + _SETTLED])
            last = statistics.median(self._resident[-_SETTLED:])
            self.growth_bytes = max(self.growth_bytes, int(last - first))
        problems = outcome["problems"] + [f"left behind: {leak}" for leak in outcome["leaks"]]
        if outcome["corrupted"]:
            problems.append(f"{outcome['corrupted']} samples were none of the dataset's")
        if problems:
            self._fail(outcome, problems)

    def add_end(self, begun: dict[str, Any], how: str, output: str) -> None:
        """Add a round that did not finish, because it hung or the process crashed."""
        self.rounds += 1
        self._fail(begun, [f"The process {how} in the middle of the round:\n{output}"])

    def _fail(self, outcome: dict[str, Any], problems: list[str]) -> None:
        self.failures.append(
            {"command": outcome["command"], "problems": problems, "settings": outcome["settings"]},
        )

    def next_process(self) -> None:
        """Restart measuring memory."""
        self._resident.clear()

    def as_json(self) -> dict[str, Any]:
        """Return the summary as plain values."""
        named = {name: value for name, value in vars(self).items() if not name.startswith("_")}
        return {**named, "faults": dict(self.faults), "ok": self.is_good}

    def as_text(self) -> str:
        """Return the summary as text."""
        lines = [
            f"{self.rounds} rounds in {self.seconds:.0f} s, seed {self.seed}",
            "faults injected:",
            *(f"  {count:>7,}  {name}" for name, count in sorted(self.faults.items())),
            f"  {sum(self.faults.values()):>7,}  in all",
            *(
                f"{name + ':':<20}{value:>9,}"
                for name, value in {
                    "workers replaced": self.restarts,
                    "workers recycled": self.recycled,
                    "batches delivered": self.batches,
                    "samples delivered": self.samples,
                    "samples lost": self.lost,
                    "samples repeated": self.repeated,
                    "samples corrupted": self.corrupted,
                    "leaks": self.leaks,
                    "failures": len(self.failures),
                }.items()
            ),
            f"{'growth of memory:':<20}{self.growth_bytes / (1 << 20):>9.1f} MiB (at most {_GROWTH_BYTES >> 20})",
        ]
        for failure in self.failures:
            lines += ["", f"FAILED: {failure['command']}", f"  settings: {json.dumps(failure['settings'])}"]
            lines += [f"  {problem}".replace("\n", "\n  ").rstrip() for problem in failure["problems"]]
        lines += ["", "nothing is lost, repeated or left behind" if self.is_good else "THE DRILL HAS FAILED"]
        return "\n".join(lines)
