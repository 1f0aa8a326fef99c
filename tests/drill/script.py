"""The script of one round: a loader, its dataset, what goes wrong and when. Drawn from the seed and the round."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, replace
from typing import Any

from tests.drill import troubles
from tests.drill.datasets import CONTENTS

ITEMS = ("items", "bulk items", "gathered")
SHARED_STREAMS = ("stream", "stateful stream")
"""Streams that the loader splits."""
SPLIT_STREAMS = ("split stream", "stateful split stream")
"""Streams that split themselves: where they resume depends on the number of workers."""
STREAMS = (*SHARED_STREAMS, *SPLIT_STREAMS)

_LONG_S, _SHORT_S = 120.0, 3.0
"""Timeouts: one that never expires, and one that ends a hanging sample."""

KILL = "killed from outside"
STOP = "stopped for a while"

SKIPS = ("skip", "skip by policy", "retry, then skip")
"""Error policies that skip bad samples."""

WHOLE, BREAK, RAISE, KEEP, CLOSE, RESUME = "whole", "break", "raise", "keep", "close", "resume"
ENDINGS = (WHOLE, BREAK, RAISE, KEEP, CLOSE, RESUME)
"""How an iteration ends: by itself; the loop is left, or raises; the iterator is kept while another starts; the loader
is closed; another loader resumes from the state."""


@dataclass(frozen=True)
class Crew:
    """The workers that make the batches."""

    engine: str
    workers: int
    start_method: str | None = None
    persistent: bool = False
    prefetch: int = 2

    @property
    def has_processes(self) -> bool:
        """True if there are processes to kill."""
        return self.engine in ("process", "portable")


@dataclass(frozen=True)
class Attack:
    """Something that is done to a worker from outside."""

    kind: str
    act: int
    """The number of the iteration in the round."""
    after: int
    """The number of batches before it."""
    delay_s: float
    choice: int
    """Which worker, modulo their number."""
    hold_s: float = 0.0
    """How long it is stopped."""


@dataclass(frozen=True)
class Act:
    """One iteration over the loader."""

    ending: str
    after: int = 0
    """The number of batches taken before it ends, if it does not end by itself."""
    through: str = ""
    """What carries the state to the other loader: "json" or "pickle"."""
    crew: Crew | None = None
    """The workers of the other loader."""


@dataclass(frozen=True)
class Script:
    """Everything about one round."""

    seed: int
    number: int
    loader: str
    """The class: "DataLoader" or "Loader"."""
    crew: Crew
    dataset: str
    content: str
    size: int
    batch_size: int | None
    drop_last: bool
    shuffle: bool
    loader_seed: int | None
    in_order: bool
    timeout_s: float
    keeps: bool
    """True if the training loop keeps batches."""
    compares: bool
    """True if batches are compared with those of a loader without workers and troubles."""
    on_error: str
    """The error policy; `loaders.py` lists all names."""
    troubles: dict[int, str]
    acts: tuple[Act, ...]
    attacks: tuple[Attack, ...]

    @property
    def is_stream(self) -> bool:
        """True for an iterable dataset."""
        return self.dataset in STREAMS

    @property
    def leaves_short(self) -> bool:
        """True if a skipped sample makes its batch smaller: a worker reads on in its own stream instead."""
        return self.on_error in SKIPS and self.dataset not in SPLIT_STREAMS

    @property
    def is_impatient(self) -> bool:
        """True if slow workers are replaced."""
        return self.timeout_s == _SHORT_S

    @property
    def bad(self) -> set[int]:
        """The samples that are never made."""
        return {index for index, name in self.troubles.items() if name in troubles.NEVER_MADE}

    @property
    def command(self) -> str:
        """The command that repeats this round."""
        return f"python -m tests.drill --seed {self.seed} --round {self.number}"

    def settings(self) -> dict[str, Any]:
        """Return all settings as plain values, without empty ones."""
        return {key: value for key, value in asdict(self).items() if value not in ((), {}, None)}


def draw_script(seed: int, number: int) -> Script:
    """Draw a round. The same seed and number give the same one."""
    draw = random.Random(f"{seed}/{number}")
    crew = _draw_crew(draw)
    dataset = _draw_dataset(draw)
    is_stream = dataset in STREAMS
    shards_itself = dataset in SPLIT_STREAMS
    content = "rows" if dataset == "gathered" else draw.choice(CONTENTS)
    size = draw.choice([0, 1, draw.randint(2, 40), draw.randint(40, 200), draw.randint(40, 300)])
    if dataset == "gathered":
        size = max(size, 1)
    batch_size = None if draw.random() < 0.05 else draw.choice([1, 2, 3, 5, 8, 16, 33])
    script = Script(
        seed=seed,
        number=number,
        loader="DataLoader" if shards_itself else draw.choice(["DataLoader", "Loader"]),
        crew=crew,
        dataset=dataset,
        content=content,
        size=size,
        batch_size=batch_size,
        drop_last=batch_size is not None and draw.random() < 0.2,
        shuffle=size > 0 and not is_stream and draw.random() < 0.6,
        loader_seed=draw.randrange(1000) if draw.random() < 0.6 else None,
        in_order=draw.random() < 0.75,
        timeout_s=_LONG_S if draw.random() < 0.3 and crew.workers else 0.0,
        keeps=draw.random() < 0.3,
        compares=draw.random() < 0.6,
        on_error="raise",
        troubles={},
        acts=(),
        attacks=(),
    )
    script = _with_troubles(draw, script)
    script = replace(script, acts=_draw_acts(draw, script))
    return replace(script, attacks=_draw_attacks(draw, script))


def _draw_crew(draw: random.Random) -> Crew:
    engine = draw.choices(["inline", "thread", "process", "portable"], [15, 20, 55, 10])[0]
    if engine == "inline":
        return Crew("inline", 0)
    method = draw.choices(["", "forkserver", "spawn"], [90, 9, 1])[0] if engine == "process" else ""
    return Crew(engine, draw.randint(1, 4), method or None, draw.random() < 0.4, draw.choice([1, 2, 2, 4]))


def _draw_dataset(draw: random.Random) -> str:
    if draw.random() < 0.7:
        return draw.choices(ITEMS, [60, 25, 15])[0]
    return draw.choice(STREAMS)


def _with_troubles(draw: random.Random, script: Script) -> Script:
    """Choose an error policy, and troubles that fit it."""
    if script.dataset == "gathered" or not script.size or draw.random() < 0.3:
        return script
    is_stream, crew = script.is_stream, script.crew
    on_error = draw.choice(["raise", "raise", *SKIPS, "retry", *([] if is_stream else ["replace"])])
    kinds = [troubles.SLOW]
    if on_error != "retry":
        kinds += [troubles.RAISES, troubles.UNPICKLABLE]
    if on_error in ("retry", "retry, then skip") and not is_stream:  # a stream only yields the next sample
        kinds += [troubles.FLAKY, troubles.FLAKY]
    if crew.has_processes:
        kinds += [troubles.KILLS_ONCE] * 3
        if crew.start_method is None:  # with other start methods, workers take seconds to restart
            kinds += draw.choice([[], [], [], [], [troubles.HANGS_ONCE], [troubles.GROWS] * 3])
        if on_error in SKIPS and not is_stream and crew.start_method != "spawn":
            kinds += [troubles.KILLS_ALWAYS]
    count = min(script.size // 4, draw.randint(1, 5))  # more than half would exceed every policy's limit
    chosen = {index: draw.choice(kinds) for index in sorted(draw.sample(range(script.size), count))}
    for index in _too_many_killers(chosen):
        del chosen[index]
    if troubles.HANGS_ONCE in chosen.values():
        script = replace(script, timeout_s=_SHORT_S)
    return replace(script, on_error=on_error, troubles=chosen)


def _too_many_killers(chosen: dict[int, str]) -> list[int]:
    """Return the killers beyond two: if they were in one batch, the third death would be blamed on a sample."""
    once = [index for index, name in chosen.items() if name in (troubles.KILLS_ONCE, troubles.HANGS_ONCE)]
    return once[0 if troubles.KILLS_ALWAYS in chosen.values() else 2 :]


def _draw_acts(draw: random.Random, script: Script) -> tuple[Act, ...]:
    acts = []
    crew = script.crew
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        ending = draw.choice(ENDINGS)
        act = Act(ending, draw.randint(0, 12))
        if ending == RESUME:
            crew = _draw_successor(draw, script, crew)
            act = replace(act, through=draw.choice(["json", "pickle"]), crew=crew)
        acts.append(act)
    return (*acts, Act(WHOLE))


def _draw_successor(draw: random.Random, script: Script, crew: Crew) -> Crew:
    """Draw the workers that resume from a state."""
    while True:
        other = _draw_crew(draw)
        if script.is_impatient and other.start_method:
            continue
        if script.dataset not in SPLIT_STREAMS:
            return other
        if other.workers and crew.workers:  # each worker has its own stream, so there must be as many
            return replace(other, workers=crew.workers)
        if other.workers == crew.workers:
            return other


def _draw_attacks(draw: random.Random, script: Script) -> tuple[Attack, ...]:
    crews = [script.crew]
    for act in script.acts:
        crews.append(act.crew or crews[-1])
    # Several deaths at one batch would be blamed on one of its samples.
    most_kills = 0 if troubles.KILLERS & set(script.troubles.values()) else 1 if script.batch_size is None else 2
    attacks = []
    for number, crew in enumerate(crews[:-1]):
        if crew.has_processes and draw.random() < 0.5:
            kills = draw.randint(0, most_kills)
            attacks += [_draw_attack(draw, KILL, number) for _ in range(kills)]
            attacks += [_draw_attack(draw, STOP, number) for _ in range(draw.randint(0, 2))]
    return tuple(attacks)


def _draw_attack(draw: random.Random, kind: str, act: int) -> Attack:
    delay_s = draw.choice([0.0, draw.randrange(50) / 1000])
    hold_s = draw.randrange(300) / 1000 if kind == STOP else 0.0
    return Attack(kind, act, draw.randint(0, 8), delay_s, draw.randrange(12), hold_s)
