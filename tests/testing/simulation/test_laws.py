"""The simulation finds faults of one line, each within a few events; the core as it is passes in the same worlds."""

from __future__ import annotations

import pytest

from feedline.testing.simulation import LawBroken, draw_scenario, simulate
from tests.testing.simulation.plants import PLANTS, Plant

EVENTS = 1000
"""Of a world; 10,000 would be allowed."""


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.what)
def test_a_fault_of_one_line_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant.grow(monkeypatch)
    with pytest.raises(LawBroken) as caught:
        simulate(draw_scenario(plant.seed), events=EVENTS)
    assert caught.value.run.events <= EVENTS + 10


@pytest.mark.parametrize("seed", sorted({plant.seed for plant in PLANTS}))
def test_the_core_as_it_is_passes_in_the_same_world(seed: int) -> None:
    assert simulate(draw_scenario(seed), events=EVENTS).events >= EVENTS
