"""What to simulate: besides what `feedline.simulation` does, other kinds of data, ranks, slots, and what goes wrong."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from feedline.abc.faults import ErrorPolicy
from feedline.errors import BadOption
from feedline.faults.policy import Policy
from feedline.simulation import scenario
from feedline.simulation.scenario import Seconds
from feedline.system.ranks import Tail

MAP, SHARED, OWN = "map", "shared stream", "own streams"
KINDS = (MAP, SHARED, OWN)

CUSTOM = "custom"
"""An order besides "in order" and "unordered": a user's own scheduler, which chooses at random."""


@dataclass(frozen=True)
class Troubles:
    """Samples that cause failures, by their index or position in the stream."""

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
    """Failures that no sample causes, each with its probability."""

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
class Scenario(scenario.Scenario):
    """What to simulate. Everything else follows from the seed.

    Raises:
        BadOption: the kind is unknown, workers hang without a timeout, or own streams have more than one rank.
    """

    kind: str = MAP
    """"map"; or "shared stream" or "own streams" for an iterable dataset that the loader splits, or does not."""
    shuffled: bool = False
    ragged: bool = False
    """True for a batch sampler whose batches have different sizes."""
    drop_last: bool = False
    stateful: bool = False
    """True for a map-style dataset with a state, or a stream whose iterator has one."""
    ranks: int = 1
    tail: Tail = "pad"
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
    step_s: Seconds = 0.01
    """How long the training loop takes for a step."""
    reread_s: float = 0.0
    """How long a worker that takes the place of another needs to read each sample of its stream again."""
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

    def source_of(self, index: int, epoch: int) -> int:
        """Return which sample an index means in an epoch."""
        return (index + 5 * epoch) % self.samples if self.remaps else index

    def __repr__(self) -> str:
        parts = []
        for one in fields(self):
            value = getattr(self, one.name)
            if value != (one.default_factory() if callable(one.default_factory) else one.default):
                parts.append(f"{one.name}={value!r}")
        return f"{type(self).__name__}({', '.join(parts)})"
