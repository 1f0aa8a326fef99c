"""The names of `feedline.simulation`, for authors of schedulers or policies."""

from feedline.simulation import Accidents, InTurn, LawBroken, Scenario, Troubles, World

__all__ = [
    "Accidents",
    "InTurn",
    "LawBroken",
    "Scenario",
    "Troubles",
    "World",
]
