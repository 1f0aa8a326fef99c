"""The real core in virtual time: recorded runs repeated with other settings, and epochs that try out schedulers."""

from feedline.simulation.scenario import InTurn, LawBroken, Scenario
from feedline.simulation.world import World

__all__ = ["InTurn", "LawBroken", "Scenario", "World"]


def __dir__() -> list[str]:
    return __all__
