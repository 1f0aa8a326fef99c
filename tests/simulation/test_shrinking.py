"""The smallest world that breaks a law, and what the command line prints about it."""

from __future__ import annotations

import sys

import pytest

from tests.simulation.__main__ import main
from tests.simulation.drawing import draw_scenario
from tests.simulation.plants import PLANTED_BUGS
from tests.simulation.run import WorldBroken, simulate
from tests.simulation.shrinking import shrink

BUG = next(bug for bug in PLANTED_BUGS if bug.what == "the window is too large by one")


def test_irrelevant_settings_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    BUG.install(monkeypatch)
    with pytest.raises(WorldBroken) as caught:
        simulate(draw_scenario(BUG.seed), events=1000)
    small = shrink(draw_scenario(BUG.seed), events=caught.value.run.events)
    assert small.run.scenario.workers == 1
    assert not small.run.scenario.accidents.death
    assert not small.run.scenario.habits.move


def test_a_world_without_a_bug_cannot_be_shrunk() -> None:
    with pytest.raises(ValueError, match="No law is broken"):
        shrink(draw_scenario(BUG.seed), events=100)


def test_the_command_line_says_how_to_repeat_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    BUG.install(monkeypatch)
    monkeypatch.setattr(sys, "argv", ["simulation", "--seed", str(BUG.seed), "--events", "700"])
    assert main() == 1
    output = capsys.readouterr().out
    assert f"repeat: python -m tests.simulation --seed {BUG.seed} --events 700" in output
    assert "smaller: simulate(TrainingScenario(" in output
    assert " give " in output


def test_the_command_line_counts_events(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["simulation", "--seed", "3", "--worlds", "2", "--events", "200"])
    assert main() == 0
    assert "2 worlds" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["simulation", "--workers", "50", "--samples", "1000000000", "--events", "500"])
    assert main() == 0
    assert "events/s" in capsys.readouterr().out
