"""A task that is in flight: given to a worker, and not answered yet."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from feedline.abc.faults import Fault
from feedline.delivery.machine.bisection import Bisection
from feedline.types import Task


@dataclass(slots=True)
class Trouble:
    """What happened to workers over one task. Most tasks have none."""

    deaths: int = 0
    """Workers that died over it."""
    unexplained: int = 0
    """Those of them, and of the ones that made parts of it, for which no sample was found to blame."""
    attempts: dict[Hashable, int] = field(default_factory=dict)
    """How often each sample was found to kill, by the key of its index."""
    last_death: BaseException | None = None
    faults: list[Fault] = field(default_factory=list)
    """What is to be said of samples that killed."""
    search: Bisection | None = None
    """Looks for such a sample."""


@dataclass(slots=True)
class Flight:
    """A task that is in flight."""

    ordinal: int
    worker: int
    task: Task
    stays: bool = False
    """True if no other worker can do it: the batch of a stream."""
    wanted: bool = True
    """False once the epoch that asked for it was left."""
    is_call: bool = False
    """True if it is a method call, which is of no epoch."""
    suspect: Flight | None = None
    """If this is a probe: the task of which it makes a part, to find out which sample kills."""
    turn: int = 0
    """When it was given to its worker, among all tasks that were given to one."""
    trouble: Trouble | None = None
    given_s: float = 0.0
    """When that was, on the machine's clock, and"""
    came_s: float = 0.0
    """when the answer was there."""
    is_held_up: bool = False
    """True if it was given late, because the program holds batches and no slot was free."""

    @property
    def whole(self) -> Flight:
        """The task that is wanted: of a probe, the one that it is a part of."""
        return self if self.suspect is None else self.suspect
