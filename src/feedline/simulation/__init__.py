"""The real core in virtual time: a world drawn from a seed, in which everything that can go wrong does."""

from feedline.simulation.run import Run, simulate
from feedline.simulation.scenario import Accidents, Habits, InTurn, LawBroken, Scenario, Troubles, draw_scenario
from feedline.simulation.world import World

__all__ = [
    "Accidents",
    "Habits",
    "InTurn",
    "LawBroken",
    "Run",
    "Scenario",
    "Troubles",
    "World",
    "draw_scenario",
    "simulate",
]


def __dir__() -> list[str]:
    return __all__
