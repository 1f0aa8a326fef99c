"""The names of `feedline.simulation`, for people who test a scheduler or a policy of their own."""

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
