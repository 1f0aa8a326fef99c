"""What to simulate: the data, the loader's options, how long things take, and what goes wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.error_policy import ErrorPolicy
from feedline.errors import BadOption
from feedline.faults.actions import Replace, Retry
from feedline.faults.policy import Policy
from feedline.types import Tail

MAP, SHARED, OWN = "map", "shared stream", "own streams"
KINDS = (MAP, SHARED, OWN)

IN_ORDER, UNORDERED, CUSTOM = "in order", "unordered", "custom"


class LawBroken(AssertionError):
    """A law was broken: a bug in the core, unless the simulated world itself is wrong.

    Example:
        >>> from feedline.simulation import LawBroken, Scenario, simulate
        >>> try:
        ...     run = simulate(Scenario(samples=64, workers=2), events=200)
        ... except LawBroken as broken:
        ...     run = broken.run  # its last events are in run.trace
        >>> run.events >= 200
        True
    """

    run: Any = None
    """The simulation up to that point: a `Run`."""


@dataclass(frozen=True)
class InTurn:
    """Recorded times that are used in turn: the first batch of an epoch takes the first, and so on, over and over.

    Example:
        >>> from feedline.simulation import InTurn, Scenario, simulate
        >>> run = simulate(Scenario(samples=64, workers=1, batch_s=InTurn((0.1, 0.3))), events=200)
        >>> run.batches > 0
        True
    """

    seconds: tuple[float, ...]


Seconds = float | Sequence[float] | InTurn
"""The mean of times that are drawn; or recorded times, chosen at random or (`InTurn`) used in turn."""


@dataclass(frozen=True)
class Troubles:
    """Samples that cause failures, by their index or position in the stream.

    Example:
        >>> from feedline.simulation import Troubles
        >>> sorted(Troubles(bad=frozenset({3}), killers=frozenset({5})).fatal)
        [5]
    """

    bad: frozenset[int] = frozenset()
    """Always raise an exception."""
    flaky: frozenset[int] = frozenset()
    """Raise an exception the first time a worker loads them."""
    killers: frozenset[int] = frozenset()
    """Always kill their worker."""
    blockers: frozenset[int] = frozenset()
    """Block their worker forever."""

    @property
    def fatal(self) -> frozenset[int]:
        """The samples that kill or block their worker."""
        return self.killers | self.blockers


@dataclass(frozen=True)
class Accidents:
    """Failures that no sample causes, each with its probability.

    Example:
        >>> from feedline.simulation import Accidents, Scenario, simulate
        >>> run = simulate(Scenario(samples=64, workers=2, accidents=Accidents(death=0.05)), events=500)
        >>> run.samples > 0
        True
    """

    death: float = 0.0
    """A worker dies during a task."""
    hang: float = 0.0
    """A worker never answers."""
    stop: float = 0.0
    """A worker is stopped for good between two tasks (SIGSTOP): it accepts tasks but starts none of them."""
    death_at_start: float = 0.0
    """A worker dies before it is ready."""
    killed_at_start: float = 0.0
    """Another process kills a worker before it is ready."""
    no_start: float = 0.0
    """The replacement of a worker cannot be started."""
    growth: float = 0.0
    """A worker uses too much memory after an answer."""
    late_answer: float = 0.0
    """An answer of a worker arrives after its replacement was started."""
    not_sent: float = 0.0
    """A task cannot be sent to its worker."""

    @property
    def blames(self) -> bool:
        """True if a sample may be blamed for a death or a hang that it did not cause."""
        return self.death > 0 or self.hang > 0


@dataclass(frozen=True)
class Habits:
    """What the training loop does besides taking batches, each with its probability per batch.

    Example:
        >>> from feedline.simulation import Habits, Scenario, simulate
        >>> run = simulate(Scenario(samples=64, workers=2, habits=Habits(move=0.1)), events=500)
        >>> run.moves > 0
        True
    """

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


@dataclass(frozen=True)
class Scenario:
    """What to simulate. Everything else follows from the seed.

    Example:
        >>> scenario = Scenario(samples=100, workers=4, batch_s=0.1, step_s=0.02)
        >>> scenario.window
        8

    Raises:
        BadOption: the kind is unknown, workers hang without a timeout, or own streams have more than one rank.
    """

    seed: int = 0
    kind: str = MAP
    """"map"; or "shared stream" or "own streams" for an iterable dataset that the loader splits, or does not."""
    samples: int = 1000
    """Size of the dataset; with own streams, of the longest one."""
    batch_size: int | None = 8
    """None for single samples."""
    shuffled: bool = False
    ragged: bool = False
    """True for a batch sampler whose batches have different sizes."""
    drop_last: bool = False
    stateful: bool = False
    """True for a map-style dataset with a state, or a stream whose iterator has one."""
    ranks: int = 1
    tail: Tail = "pad"
    workers: int = 2
    depth: int = 2
    order: str = IN_ORDER
    """"in order", "unordered", or "custom": a user's own scheduler, which chooses at random."""
    moves: bool = True
    """False if batches may depend on their worker, so worker i makes batch i mod n: processes without `seed=`."""
    policy: ErrorPolicy = field(default_factory=Policy)
    restarts: int = 32
    timeout_s: float = 0.0
    kills_stuck: bool = False
    persistent: bool = True
    """False if workers end with their epoch."""
    slots: int = 0
    """Number of slots for batches; 0 to send batches in messages."""
    slot_bytes: int = 1 << 20
    budget_bytes: int | None = None
    """Maximum bytes of slots in use; None for no limit."""
    deepens: bool = False
    batch_s: Seconds = 0.1
    """How long a worker takes for a batch."""
    step_s: Seconds = 0.01
    """How long the training loop takes for a step."""
    start_s: Seconds = 1.0
    """How long a worker takes to get ready."""
    reread_s: float = 0.0
    """How long a worker that takes the place of another needs to read each sample of its stream again."""
    late: float = 0.0
    """The probability that a batch takes 20 times as long."""
    cores: int | None = None
    """Cores that the workers share while they compute; None if each has its own."""
    computing: float = 1.0
    """The share of a batch's time that its worker computes; the rest it waits."""
    troubles: Troubles = Troubles()
    accidents: Accidents = Accidents()
    habits: Habits = Habits()
    remaps: bool = False
    """True for a map-style dataset without a state whose indices mean other samples in each epoch."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadOption(f"kind={self.kind!r} is not one of {', '.join(map(repr, KINDS))}.")
        hangs = self.accidents.hang > 0 or self.accidents.stop > 0 or self.troubles.blockers
        if hangs and not self.timeout_s:
            raise BadOption("Workers hang, and with timeout_s=0 the training loop would wait forever. Set a timeout.")
        if self.kind == OWN and self.ranks > 1:
            raise BadOption(f"ranks={self.ranks} does not work with own streams. Use one rank, or a shared stream.")

    @property
    def most_workers(self) -> int:
        """Maximum number of workers, with those that `Habits.resize` may add."""
        is_bound = self.kind == OWN or (self.kind == MAP and self.stateful)
        return self.workers if is_bound or not self.habits.resize else self.workers + 2

    @property
    def window(self) -> int:
        """Maximum batches in flight."""
        return max(1, self.depth * self.workers)

    def source_of(self, index: int, epoch: int) -> int:
        """Return which sample an index means in an epoch."""
        return (index + 5 * epoch) % self.samples if self.remaps else index

    def contention(self, at_work: int) -> float:
        """Return how many times as long a batch takes if `at_work` workers, including its own, are then busy."""
        return 1.0 if self.cores is None else float(contention(at_work, self.cores, self.computing))

    def __repr__(self) -> str:
        parts = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value != (one.default_factory() if callable(one.default_factory) else one.default):
                parts.append(f"{one.name}={value!r}")
        return f"Scenario({', '.join(parts)})"


# Any: a number, or an array of them, as `at_work` is.
def contention(at_work: float | NDArray[np.int64], cores: int, computing: float) -> Any:
    """Return how many times as long a batch takes if `at_work` workers share the cores.

    The simplest model: cores are shared evenly, waiting needs no core, and no core idles while a worker could use it.

    Args:
        at_work: number of busy workers.
        cores: number of cores they share.
        computing: the share of a batch's time that its worker computes.

    Example:
        >>> [float(contention(workers, 4, 1.0)) for workers in (2, 4, 8)]
        [1.0, 1.0, 2.0]
        >>> float(contention(16, 4, 0.5))
        2.0
    """
    return np.maximum(1.0, at_work * computing / cores)


# object: the changes are arguments of `Scenario`.
def draw_scenario(seed: int, **changes: object) -> Scenario:
    """Draw a small world in which much goes wrong.

    Args:
        seed: determines everything that is drawn.
        changes: fields that are set instead of drawn.

    Example:
        >>> draw_scenario(1) == draw_scenario(1), draw_scenario(1, workers=3).workers
        (True, 3)
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
    return Scenario(**{**drawn, **changes})


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
