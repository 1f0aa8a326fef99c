"""The simulation finds one-line bugs, each within 10,000 events. The core passes in the worlds of `plants.py`."""

from __future__ import annotations

import itertools
import sys

import pytest

from tests.simulation.__main__ import main
from tests.simulation.drawing import draw_scenario
from tests.simulation.plants import PLANTED_BUGS, RARE_WORLDS, PlantedBug
from tests.simulation.run import WorldBroken, simulate

EVENTS = 1000
"""Per world."""


def events_until_found(bug: PlantedBug) -> int:
    """Simulate worlds until a law is broken, or 10,000 events have happened; return the number of events."""
    events = 0
    for seed in itertools.count(bug.seed):
        try:
            events += simulate(draw_scenario(seed, **bug.drawn), events=EVENTS).events
        except WorldBroken as broken:
            return events + broken.run.events
        if events >= 10_000:
            return events
    raise AssertionError


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.what)
def test_a_one_line_bug_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.install(monkeypatch)
    assert events_until_found(bug) < 10_000


@pytest.mark.parametrize("name", RARE_WORLDS)
def test_the_core_passes_in_worlds_in_which_rare_things_happen_often(name: str) -> None:
    assert simulate(draw_scenario(0, **RARE_WORLDS[name]), events=EVENTS).events >= EVENTS


def test_the_command_line_says_how_to_repeat_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = next(bug for bug in PLANTED_BUGS if bug.what == "the window is too large")
    arguments = ["simulation", "--seed", str(bug.seed), "--events", "700"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 0
    assert "no law was broken" in capsys.readouterr().out
    bug.install(monkeypatch)
    assert main() == 1
    assert f"repeat: python -m tests.simulation --seed {bug.seed} --events 700" in capsys.readouterr().out
