"""How much the machine itself disturbs measured times."""

from __future__ import annotations

import numpy as np
import pytest

from feedline.system.timing import Clock
from feedline.tools.measure import noise
from feedline.tools.measure.noise import Calibration, spread_of


class ListClock(Clock):
    """A clock that takes its durations from a list."""

    def __init__(self, times: list[float]) -> None:
        self._times = iter(times)

    def now(self) -> tuple[float, float]:
        return 0.0, 0.0

    def since(self, before: tuple[float, float]) -> tuple[float, float]:
        return next(self._times), 0.0


def test_a_quiet_machine_has_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_cores_time", lambda: [0, 0, 0, 0, 0, 0, 0, 0])
    assert Calibration(ListClock([1e-4] * 100)).noise().floor == 0


def test_short_bursts_are_ignored_and_lasting_changes_count() -> None:
    dice = np.random.default_rng(0)
    steady = dice.normal(1e-4, 1e-6, 100).tolist()
    assert spread_of(steady) < 0.03
    bursts = [seconds * (20 if place % 10 == 3 else 1) for place, seconds in enumerate(steady)]
    assert spread_of(bursts) < 0.03, "another program disturbed one in ten runs"
    slowed = [seconds * (1 + (place > 50)) for place, seconds in enumerate(steady)]
    assert 0.5 < spread_of(slowed) < 1.1, "the cores were half as fast for half of the time"


def test_stolen_time_is_a_share_of_all_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([[100] * 8, [150, 100, 100, 120, 100, 100, 100, 130]])
    monkeypatch.setattr(noise, "_cores_time", lambda: next(looks))
    found = Calibration(ListClock([1e-4] * 100)).noise()
    assert found.stolen == pytest.approx(0.3)
    assert found.floor == pytest.approx(0.3)
