"""What to simulate: the data, the loader's options, how long things take, and what goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.error_policy import ErrorPolicy
from feedline.errors import BadOption
from feedline.faults.policy import Policy
from feedline.types import Tail

MAP, SHARED, OWN = "map", "shared stream", "own streams"
KINDS = (MAP, SHARED, OWN)

IN_ORDER, UNORDERED, CUSTOM = "in order", "unordered", "custom"


class LawBroken(AssertionError):
    """A law was broken: a bug in the core or in a scheduler, unless the simulated world itself is wrong.

    Example:
        >>> from feedline.simulation import LawBroken
        >>> from feedline.simulation.slots import CountedSlots
        >>> slots = CountedSlots(4, slot_bytes=1 << 20, budget_bytes=None)
        >>> try:
        ...     slots.release(0)
        ... except LawBroken as broken:
        ...     print(broken)
        slot 0 is released but has no owner
    """


@dataclass(frozen=True)
class InTurn:
    """Recorded times that are used in turn: the first batch of an epoch takes the first, and so on, over and over.

    Example:
        >>> from feedline.simulation import InTurn, Scenario
        >>> Scenario(workers=1, batch_s=InTurn((0.1, 0.3))).batch_s.seconds[1]
        0.3
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
        >>> from feedline.simulation import Accidents, Scenario
        >>> Scenario(samples=64, workers=2, accidents=Accidents(death=0.05)).accidents.blames
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
        return f"{type(self).__name__}({', '.join(parts)})"


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
