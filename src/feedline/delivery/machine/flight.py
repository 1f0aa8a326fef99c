"""A task in flight: assigned to a worker, and not answered yet."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from feedline.abc.faults import Fault
from feedline.delivery.machine.fault_budget import Treated
from feedline.types import Task


@dataclass(slots=True)
class Trouble:
    """Deaths of workers over one task. Most tasks have none."""

    deaths: int = 0
    """Workers that died over this task."""
    attempts: dict[Hashable, int] = field(default_factory=dict)
    """How often each sample was found to kill, by the key of its index."""
    faults: list[Fault] = field(default_factory=list)
    """Faults to report for samples that killed."""
    place: int = -1
    """The sample that is tried alone."""
    deaths_alone: int = 0
    """Workers that died over it."""


@dataclass(slots=True)
class Flight:
    """A task in flight: assigned to a worker, and not answered yet."""

    ordinal: int
    worker: int
    task: Task
    stays: bool = False
    """True if no other worker can do it, as with a batch of a stream."""
    treated: Treated | None = None
    """What was requested, if failed samples are not just raised."""
    is_call: bool = False
    """True for a method call, which belongs to no epoch."""
    suspect: Flight | None = None
    """For a probe: the task of which it makes one sample, to find the one that kills."""
    wanted: bool = True
    """False once the epoch that requested it was left."""
    trouble: Trouble | None = None
    samples: int | None = None
    """Samples that its answer covers, if these are not the samples of a full batch."""
    is_entered: bool = False
    """True once the faults of its answer are in the log."""
    given_s: float = 0.0
    """When it was assigned, on the machine's clock."""
    came_s: float = 0.0
    """When the answer arrived."""
    is_held_up: bool = False
    """True if it was assigned late, because the program holds batches and no slot was free."""

    @property
    def requested(self) -> Flight:
        """The task that was requested: for a probe, the one of which it makes a sample."""
        return self if self.suspect is None else self.suspect
