"""Shrinking: find a smaller world that breaks the same law."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from feedline.simulation.scenario import MAP, Troubles
from tests.simulation.drawing import TrainingScenario
from tests.simulation.run import WorldBroken, simulate


def shrink(scenario: TrainingScenario, *, events: int) -> WorldBroken:
    """Return the failure of the smallest world found that breaks the same law, which may be `scenario` itself.

    Args:
        scenario: a world that breaks a law.
        events: maximum events until it does.

    Raises:
        ValueError: no law is broken within `events`.
    """
    best = _broken(scenario, events)
    if best is None:
        raise ValueError(f"No law is broken within {events} events. Pass the event count of the run that broke one.")
    form, tried = _form(best), True
    while tried:
        tried = False
        for smaller in _smaller(best.run.scenario):
            found = _broken(smaller, max(2 * best.run.events, 200))
            if found is not None and _form(found) == form:
                best, tried = found, True
                break
    return best


def _form(broken: WorldBroken) -> str:
    """Return which law was broken: the message without its numbers."""
    return re.sub(r"[^a-z]+", " ", str(broken))


def _broken(scenario: TrainingScenario, events: int) -> WorldBroken | None:
    try:
        simulate(scenario, events=events)
    except WorldBroken as broken:
        return broken
    return None


def _smaller(scenario: TrainingScenario) -> Iterator[TrainingScenario]:
    """Yield simpler worlds, each with one simplification."""
    for part in ("accidents", "habits"):
        kept = getattr(scenario, part)
        for one in fields(kept):
            if getattr(kept, one.name):
                yield replace(scenario, **{part: replace(kept, **{one.name: one.default})})
    if scenario.troubles != Troubles() and not scenario.troubles.fatal:
        yield replace(scenario, troubles=Troubles())
    calm: dict[str, Any] = {"late": 0.0, "ranks": 1, "slots": 0, "batch_s": 0.1, "stateful": False}
    for name, plain in calm.items():
        if getattr(scenario, name) != plain and not (scenario.kind == MAP and scenario.stateful):  # see `STATEFUL`
            yield replace(scenario, **{name: plain})
    if scenario.workers > 1:
        yield replace(scenario, workers=scenario.workers - 1)
    if scenario.depth > 1:
        yield replace(scenario, depth=1)
