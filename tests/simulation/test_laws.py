"""The simulation finds one-line bugs, each within 10,000 events; the unchanged core passes in the same worlds."""

from __future__ import annotations

import itertools

import pytest

from tests.simulation.drawing import draw_scenario
from tests.simulation.plants import PLANTED_BUGS, PlantedBug
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


@pytest.mark.sample(2)
@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.what)
def test_a_one_line_bug_is_found(bug: PlantedBug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.install(monkeypatch)
    assert events_until_found(bug) < 10_000


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", sorted({bug.seed for bug in PLANTED_BUGS}))
def test_the_unchanged_core_passes_in_the_same_world(seed: int) -> None:
    assert simulate(draw_scenario(seed), events=EVENTS).events >= EVENTS


@pytest.mark.sample(4)
@pytest.mark.parametrize("bug", [bug for bug in PLANTED_BUGS if bug.drawn], ids=lambda bug: bug.what)
def test_the_unchanged_core_passes_in_the_same_rare_world(bug: PlantedBug) -> None:
    assert simulate(draw_scenario(bug.seed, **bug.drawn), events=EVENTS).events >= EVENTS
