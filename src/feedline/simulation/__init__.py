"""The real core in virtual time: recorded runs repeated with other settings, and epochs that try out schedulers."""

from feedline.simulation.scenario import Accidents, InTurn, LawBroken, Scenario, Troubles
from feedline.simulation.world import World

__all__ = [
    "Accidents",
    "InTurn",
    "LawBroken",
    "Scenario",
    "Troubles",
    "World",
]


def __dir__() -> list[str]:
    return __all__
