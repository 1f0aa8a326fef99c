"""The real core in virtual time: a world drawn from a seed, in which everything that can go wrong does."""

from feedline.testing.simulation.run import Run, simulate
from feedline.testing.simulation.scenario import Accidents, Habits, LawBroken, Scenario, Troubles, draw_scenario
from feedline.testing.simulation.world import World

__all__ = ["Accidents", "Habits", "LawBroken", "Run", "Scenario", "Troubles", "World", "draw_scenario", "simulate"]
