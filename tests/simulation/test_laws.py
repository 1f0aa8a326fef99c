"""The simulation finds faults of one line, each within 10,000 events; the core as it is passes in the same worlds."""

from __future__ import annotations

import itertools

import pytest

from feedline.simulation import LawBroken, draw_scenario, simulate
from tests.simulation.plants import PLANTS, Plant

EVENTS = 1000
"""Of a world."""


def events_until_found(plant: Plant) -> int:
    """Go through worlds until a law is broken, or 10,000 events have happened."""
    events = 0
    for seed in itertools.count(plant.seed):
        try:
            events += simulate(draw_scenario(seed, **plant.drawn), events=EVENTS).events
        except LawBroken as broken:
            return events + int(broken.run.events)
        if events >= 10_000:
            return events
    raise AssertionError


@pytest.mark.sample(2)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.what)
def test_a_fault_of_one_line_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant.grow(monkeypatch)
    assert events_until_found(plant) < 10_000


@pytest.mark.sample(4)
@pytest.mark.parametrize("seed", sorted({plant.seed for plant in PLANTS}))
def test_the_core_as_it_is_passes_in_the_same_world(seed: int) -> None:
    assert simulate(draw_scenario(seed), events=EVENTS).events >= EVENTS


@pytest.mark.sample(4)
@pytest.mark.parametrize("plant", [plant for plant in PLANTS if plant.drawn], ids=lambda plant: plant.what)
def test_the_core_as_it_is_passes_in_the_same_rare_world(plant: Plant) -> None:
    assert simulate(draw_scenario(plant.seed, **plant.drawn), events=EVENTS).events >= EVENTS
