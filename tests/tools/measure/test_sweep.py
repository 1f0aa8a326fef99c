"""What a sweep over a dataset measures, with which arguments, and what it keeps. Figures stand for loaders."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from feedline.tools.measure import sweep
from feedline.tools.measure.harness import Figures, Settings
from feedline.tools.measure.sweep import Sweep, Swept
from feedline.tools.measure.target import Made

PLAIN = f"{Path(__file__).parent / 'broken.py'}:Plain"

# Any, throughout: arguments of loaders, and values of all kinds.
Opening = functools.partial[Any]


@dataclass
class Measured:
    """Replaces measurements: `rate` gets the side and the arguments of a loader."""

    rate: Callable[[str, dict[str, Any]], float]
    others: float = 0.0
    openings: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def steady(self, opening: Opening, *_: object, **__: object) -> Measured:
        self.openings.append((opening.func.__self__.name, opening.keywords))  # type: ignore[attr-defined]
        return self

    def measure(self) -> Figures:
        side, options = self.openings[-1]
        return {"samples_per_s": self.rate(side, options), "making_s": 0.5, "seconds": 1.0, "cpu_s_per_1000": 1.0,
                "other_cores": self.others}  # fmt: skip


def swept(monkeypatch: pytest.MonkeyPatch, measured: Measured, **options: Any) -> Swept:
    monkeypatch.setattr(sweep, "Steady", measured.steady)
    monkeypatch.setattr(sweep, "make_some", lambda *_, **__: Made(0.1, 0.1, 1000))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = Swept()

    def send(kind: str, name: str, value: object = None) -> None:
        if kind == "part":
            setattr(found, name, value)

    Sweep(PLAIN, 100.0, Settings(rounds=3), **options).measure(send)
    return found


def test_both_loaders_get_the_same_arguments_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = Measured(lambda *_: 1.0)
    swept(monkeypatch, measured, engines=("torch", "process"), workers=(0, 2))
    sides = [(side, options["num_workers"]) for side, options in measured.openings]
    there = [("torch", 0), ("feedline/inline", 0), ("torch", 2), ("feedline/process", 2)]
    assert sides == [*there, *there, *there[::-1]]
    (_, torchs), (_, ours) = measured.openings[2:4]
    assert torchs == ours
    assert torchs["persistent_workers"]
    assert "prefetch_factor" not in torchs, "the loaders' own default"


def test_settings_that_raise_are_left_out_and_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def rate(side: str, options: dict[str, Any]) -> float:
        if options["num_workers"] and side != "feedline/thread":
            text = "Caught ValueError in DataLoader worker process 3.\nOriginal Traceback (most recent call last):\n"
            raise ValueError(f"{text}ValueError: sample 13 is damaged\n" if side == "torch" else "sample 13 is damaged")
        return 1.0

    found = swept(monkeypatch, Measured(rate), engines=("torch", "process", "thread"), workers=(0, 2))
    assert found.skipped() == "Skipped 2 workers (torch), 2 workers (process): ValueError: sample 13 is damaged\n"
    assert [str(setting) for setting in found.measured()] == ["no workers (torch)", "no workers", "2 workers (thread)"]
