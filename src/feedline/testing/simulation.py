"""The names of `feedline.simulation`, for authors of schedulers or policies."""

from feedline.simulation import (
    Accidents,
    Habits,
    InTurn,
    LawBroken,
    Run,
    Scenario,
    Troubles,
    World,
    draw_scenario,
    simulate,
)

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
