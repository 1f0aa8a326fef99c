"""What goes wrong in one cycle of a program: between the opening of a training loader and its closing."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.drill.script import KILL, STOP, Attack
from tests.drill.troubles import FLAKY, KILLS_ONCE, SLOW
from tests.soak.data import Configuration, bad_samples
from tests.soak.settings import Settings

CALM, SAMPLES, ATTACKS = "calm", "bad samples", "attacks"
KINDS = (SAMPLES, ATTACKS, CALM)
"""They take turns, so a program has seen each of them after its warm-up."""

WARM_UP = len(KINDS)
"""Cycles after which a process is as large as it should get: one of each kind."""

_STEPS_BETWEEN_KILLS = 40
"""A batch whose workers die three times counts as one that kills them; after so many steps, it has been delivered."""


@dataclass(frozen=True)
class Cycle:
    """The faults of a cycle, and when it checkpoints and evaluates."""

    kind: str
    steps: int
    troubles: dict[int, str]
    attacks: tuple[Attack, ...]
    """Their `after` counts the steps of the cycle."""
    evaluate_at: int
    save_every: int


def draw_cycle(settings: Settings, kind: Configuration, number: int) -> Cycle:
    """Draw a cycle. The same settings and number give the same one."""
    draw = random.Random(f"{settings.seed}/{kind.name}/{number}")
    epoch = settings.size // settings.batch_size
    steps = max(4, round(epoch * 10 ** draw.uniform(-0.7, 0.5)))
    name = KINDS[number % len(KINDS)]
    return Cycle(
        name,
        steps,
        _draw_troubles(draw, settings, kind) if name == SAMPLES else {},
        _draw_attacks(draw, steps) if name == ATTACKS and kind.has_processes else (),
        evaluate_at=draw.randrange(steps),
        save_every=draw.randint(5, 40),
    )


def _draw_troubles(draw: random.Random, settings: Settings, kind: Configuration) -> dict[int, str]:
    names = [SLOW] * 4
    if kind.dataset != "tar":  # a stream is asked for its next sample
        names += [FLAKY] * 4
    if kind.has_processes:
        names += [KILLS_ONCE] * 2
    good = sorted(set(range(settings.size)) - bad_samples(settings, kind.name))
    return dict(zip(draw.sample(good, len(names)), names, strict=True))


def _draw_attacks(draw: random.Random, steps: int) -> tuple[Attack, ...]:
    attacks = []
    for first in range(0, steps, _STEPS_BETWEEN_KILLS):
        what = draw.choice([KILL, KILL, STOP])
        hold_s = draw.uniform(0.0, 0.3) if what == STOP else 0.0
        attacks.append(Attack(what, 0, first, draw.uniform(0.0, 0.05), draw.randrange(12), hold_s))
    return tuple(attacks)
