"""Small worlds drawn from a seed, in which much goes wrong, and what their training loops do."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from feedline.faults.actions import Replace, Retry
from feedline.faults.policy import Policy
from feedline.simulation.scenario import IN_ORDER, UNORDERED
from tests.simulation.scenario import CUSTOM, MAP, OWN, SHARED, Accidents, Scenario, Troubles


@dataclass(frozen=True)
class Habits:
    """What the training loop does besides taking batches, each with its probability per batch."""

    holds: int = 0
    """Maximum number of batches that it keeps; not a probability."""
    leave: float = 0.0
    """It starts another epoch before this one has ended."""
    move: float = 0.0
    """It saves its state and continues elsewhere: with other workers, and other ranks where the order allows it."""
    call: float = 0.0
    """It calls a method of the dataset in all workers."""
    look: float = 0.0
    """It saves its state, and another loader continues from it to the end of the epoch; so does the loop itself."""
    resize: float = 0.0
    """It changes the number of workers; not if each has a stream or a state of its own."""


@dataclass(frozen=True, repr=False)
class TrainingScenario(Scenario):
    """A world, and what the training loop in it does."""

    habits: Habits = Habits()

    @property
    def most_workers(self) -> int:
        """Maximum number of workers, with those that `Habits.resize` may add."""
        is_bound = self.kind == OWN or (self.kind == MAP and self.stateful)
        return self.workers if is_bound or not self.habits.resize else self.workers + 2


# object: the changes are arguments of `TrainingScenario`.
def draw_scenario(seed: int, **changes: object) -> TrainingScenario:
    """Draw a small world in which much goes wrong.

    Args:
        seed: determines everything that is drawn.
        changes: fields that are set instead of drawn.
    """
    dice = random.Random(seed)
    drawn: dict[str, Any] = {"seed": seed, "kind": dice.choice((MAP, MAP, MAP, SHARED, OWN)), **changes}
    for draw in (_draw_data, _draw_loader, _draw_time, _draw_trouble, _draw_habits):
        drawn |= {**draw(dice, drawn), **changes}  # what is drawn next depends on it
    if drawn["kind"] == MAP and dice.random() < 0.2:
        drawn |= {**STATEFUL, "accidents": replace(drawn["accidents"], hang=0.0)}
    drawn["habits"] = replace(drawn["habits"], resize=dice.choice((0.0, 0.0, 0.1)))
    drawn["moves"] = dice.random() < 0.6
    if drawn["timeout_s"] and drawn["kills_stuck"] and not drawn["stateful"] and dice.random() < 0.4:
        drawn["accidents"] = replace(drawn["accidents"], stop=dice.choice((0.02, 0.2)))
    if dice.random() < 0.1:
        drawn["accidents"] = replace(drawn["accidents"], killed_at_start=0.8)
    drawn["reread_s"] = dice.choice((0.0, 0.0, 2.0))
    if drawn["deepens"] and drawn["kind"] == MAP and not drawn["stateful"]:
        drawn |= BRISK
    drawn["remaps"] = drawn["kind"] == MAP and not drawn["stateful"] and dice.random() < 0.3
    return TrainingScenario(**{**drawn, **changes})


BRISK: dict[str, object] = {"depth": 2, "order": IN_ORDER, "slots": 0, "budget_bytes": None, "batch_s": 0.0005}
"""Fields of a world whose batches are so quick to make that several tasks go to a worker together."""

STATEFUL: dict[str, object] = {
    "kind": MAP,
    "stateful": True,
    "ranks": 1,
    "order": IN_ORDER,
    "batch_s": (0.01,),  # no worker is late, so each keeps its tasks, which determine its state
    "late": 0.0,
    "start_s": 0.0,
    "troubles": Troubles(),
    "policy": Policy(),
}
"""Fields of a world whose map-style dataset has a state. A late worker would lose tasks to others, and the states of
both would depend on the timing.
"""


def _draw_data(dice: random.Random, drawn: dict[str, object]) -> dict[str, object]:
    kind = drawn["kind"]
    ragged = kind == MAP and dice.random() < 0.2
    ranks = 1 if kind == OWN else dice.choice((1, 1, 1, 2, 3))
    exact = ranks > 1 and not ragged and dice.random() < 0.4
    samples = dice.choice((7, 23, 40, 64, 150))
    batch_size = dice.choice((2, 3, 4, 8)) if exact or ragged else dice.choice((1, 2, 3, 4, 8, None))
    data: dict[str, object] = {
        "samples": samples,
        "batch_size": batch_size,
        "shuffled": dice.random() < 0.5,
        "ragged": ragged,
        "ranks": ranks,
        "tail": "exact" if exact else dice.choice(("pad", "drop")),
        "drop_last": not exact and dice.random() < 0.2,
        "stateful": kind != MAP and dice.random() < 0.5,
    }
    # The end of a stream may shorten the step before the last. A state saved right after that step does not always
    # know, and the loader refuses to resume from it.
    left = samples % ((batch_size or 1) * ranks)
    return {**data, "tail": "pad"} if exact and kind != MAP and 0 < left < ranks else data


def _draw_loader(dice: random.Random, drawn: dict[str, object]) -> dict[str, object]:
    orders = (IN_ORDER, IN_ORDER, UNORDERED) if drawn["kind"] == OWN else (IN_ORDER, IN_ORDER, UNORDERED, CUSTOM)
    slots = dice.choice((0, 3, 8, 64))
    return {
        "workers": dice.choice((1, 2, 2, 3, 5)),
        "depth": dice.choice((1, 2, 2, 4)),
        "order": dice.choice(orders),
        "restarts": dice.choice((2, 8, 1000, 1000)),
        "persistent": dice.random() < 0.8,
        "slots": slots,
        "budget_bytes": (1 << 20) * dice.randint(2, 8) if slots and dice.random() < 0.3 else None,
        "deepens": dice.random() < 0.2,
    }


def _draw_time(dice: random.Random, drawn: dict[str, object]) -> dict[str, object]:
    recorded = tuple(dice.expovariate(10.0) for _ in range(20))
    return {
        "batch_s": dice.choice((0.001, 0.1, recorded)),
        "step_s": dice.choice((0.0, 0.01, 0.2)),
        "start_s": dice.choice((0.0, 0.5, 3.0)),
        "late": dice.choice((0.0, 0.02, 0.1)),
        "timeout_s": dice.choice((0.0, 60.0)),
        "kills_stuck": dice.random() < 0.8,
    }


def _draw_trouble(dice: random.Random, drawn: dict[str, Any]) -> dict[str, object]:
    is_map, samples = drawn["kind"] == MAP, drawn["samples"]

    def some(share: float) -> frozenset[int]:
        return frozenset(dice.sample(range(samples), dice.randint(0, max(1, int(samples * share)))))

    has = dice.random
    bad = some(0.1) if has() < 0.5 else frozenset()
    flaky = some(0.1) - bad if is_map and has() < 0.3 else frozenset()
    # A stream cannot skip a sample that kills its worker.
    fatal = some(0.05) - bad - flaky if is_map and drawn["restarts"] == 1000 and has() < 0.6 else frozenset()
    mends = 0.0 if fatal and has() < 0.7 else 1.0  # without accidents, it is certain which sample is to blame
    blocks = drawn["timeout_s"] > 0 and drawn["kills_stuck"] and has() < 0.3
    actions = ("raise", "skip", Retry(2, wait_s=0.01, then="skip"), *(("replace", Replace()) if is_map else ()))
    budget = dice.choice((None, None, 3))
    policy = Policy(otherwise=dice.choice(actions), max_failures=budget, max_share=dice.choice((None, 1.0)))
    accidents = Accidents(
        death=mends * dice.choice((0.0, 0.0, 0.01, 0.05)),
        hang=mends * 0.02 if drawn["timeout_s"] and has() < 0.3 else 0.0,
        death_at_start=dice.choice((0.0, 0.0, 0.2)),
        no_start=0.02 if has() < 0.1 else 0.0,
        growth=dice.choice((0.0, 0.0, 0.05)),
        late_answer=dice.choice((0.0, 0.5)),
        not_sent=0.01 if is_map and has() < 0.1 else 0.0,
    )
    troubles = Troubles(bad, flaky, frozenset() if blocks else fatal, fatal if blocks else frozenset())
    return {"troubles": troubles, "accidents": accidents, "policy": policy}


def _draw_habits(dice: random.Random, drawn: dict[str, object]) -> dict[str, object]:
    return {
        "habits": Habits(
            holds=dice.choice((0, 0, 2, 10)),
            leave=dice.choice((0.0, 0.03)),
            move=dice.choice((0.0, 0.05)),
            call=dice.choice((0.0, 0.05)),
            look=dice.choice((0.0, 0.03)),
        )
    }
