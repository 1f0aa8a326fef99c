"""One pass over the batches of a plan: how many were requested, which are in flight, and which are ready.

Batches are numbered from 0, starting where the epoch was entered. What is requested, from which worker, and where a
worker resumes depends on the kind of the epoch: see `Kind`. An epoch knows nothing about the lifetime of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from feedline.abc.scheduler import Scheduler, WorkerView
from feedline.delivery.machine.batch_indices import count_of
from feedline.delivery.machine.fault_budget import FaultBudget, Treated
from feedline.delivery.machine.flight import Flight
from feedline.delivery.machine.prefetch import Limits
from feedline.delivery.machine.stream_check import StreamCheck
from feedline.errors import BadOption
from feedline.faults.policy import policy_of
from feedline.order.progress import Progress
from feedline.types import Position, Result

NOTHING: object = object()
"""Marks the absence of a batch."""


class Kind(Protocol):
    """What depends on the kind of an epoch: the indices of a map-style dataset, a shared stream, or own streams.

    It gets the epoch with every call and does not keep it: a cycle of references would keep memory after the last use.
    """

    stream_count: int
    """Samples per batch, if batches are cut from a stream; 0 if the dataset has indices."""
    batched: bool
    """False if single samples are requested."""
    stays: bool
    """True if a task stays with the worker it was assigned to."""
    can_move: bool
    """True if another worker would make the same batch."""
    awaits_one: bool
    """True if waiting for a batch means waiting for its worker alone, as long as that worker is not late."""
    deepens: bool
    """True if batches may be requested many windows ahead."""
    stream_check: StreamCheck

    def open(self, epoch: Epoch, worker_count: int) -> None:
        """Begin, with workers at `Progress.positions` if these are known."""

    def next(self, epoch: Epoch, workers: Sequence[WorkerView]) -> tuple[object, int] | None:
        """Return the contents of the next request and the worker that gets it; None if there is none for now."""

    def flight(
        self, epoch: Epoch, ordinal: int, indices: object, worker: int, treated: Treated | None = None
    ) -> Flight:
        """Return the task for a request, without id and slot."""

    def arrived(self, epoch: Epoch, flight: Flight, result: Result) -> None:
        """Accept an answer: put it into `Epoch.ready` if something is to be delivered for it."""

    def pop(self, epoch: Epoch, ordinal: int) -> Result:
        """Remove a batch that is delivered or skipped, or the end of a stream, from `Epoch.ready`."""

    def note(self, epoch: Epoch, ordinal: int, worker: int, position: Position | None) -> None:
        """Record a batch as delivered. The last step does it, so that an interrupt does not lose the batch."""

    def resume_for(self, worker: int) -> Position | None:
        """Return where a replacement for this worker resumes."""


class Epoch:
    """One pass over a plan, or the rest of one.

    Args:
        kind: what is requested, and from which worker.
        scheduler: assigns batches to workers.
        limits: how much may be in flight, and how long it may take.
        progress: records every delivered batch.
        fault_budget: keeps account of failed samples.
        number: the number of the epoch.
        restores: True if workers have to restore the positions in `progress` first; False if they are there already.
    """

    checkpoint: Any = None
    """Where the loader records the position in this epoch."""

    def __init__(
        self,
        kind: Kind,
        scheduler: Scheduler,
        limits: Limits,
        progress: Progress,
        fault_budget: FaultBudget | None = None,
        number: int = 0,
        *,
        restores: bool = False,
    ) -> None:
        self.kind, self.scheduler, self.limits, self.progress, self.number = kind, scheduler, limits, progress, number
        self.restores = restores
        self.fault_budget = fault_budget or FaultBudget(policy_of(None))
        self.guards = self.fault_budget.guards
        self.deepens = limits.deepens and kind.deepens
        self.numbers = progress
        """Which requests are delivered, or need not be, by their numbers."""
        self.sent = 0
        """Batches assigned, plus those that need not be."""
        self.done = 0
        """Batches among these that the training loop has, or that need not be delivered."""
        self.in_flight: dict[int, Flight] = {}
        """Tasks in flight, by batch number."""
        self.ready: dict[int, Result] = {}
        """Batches that wait for the training loop, by number."""
        self.is_complete = False
        """True if the training loop has every batch; False if it left before."""
        self.exhausted = False
        """True if the plan has no more batches, or none that are wanted."""
        self.held: object = NOTHING
        """The next batch of the plan, while no worker may have it."""
        self.end: int | None = None
        """The number of the first batch past the end of the stream."""
        self.unraised: BaseException | None = None
        """What the scheduler raised while a batch was being delivered; raised in place of the next batch."""

    def open(self, worker_count: int) -> None:
        """Begin."""
        self.kind.open(self, worker_count)
        self.scheduler.open(worker_count, self.limits.depth)

    @property
    def is_over(self) -> bool:
        """True if a stream has ended, and the training loop has every batch before its end."""
        return self.end is not None and self.numbers.delivered >= self.end

    def due(self) -> int | None:
        """Return the number of the finished batch to deliver next, None if it is not ready."""
        if not self.ready:
            return None
        ordinal = self.scheduler.take(self.ready, self.numbers.delivered)
        if ordinal is not None and ordinal not in self.ready:
            raise BadOption(
                f"{self.scheduler!r} delivers batch {ordinal}, which is not among the finished batches "
                f"{sorted(self.ready)[:8]}: `take` must choose one of them, or None."
            )
        return ordinal

    def note_faults(self, result: Result) -> None:
        """Log the faults of a batch that is about to be delivered; the batch stays in `ready` if there were too many.

        Raises:
            TooManyBadSamples: the budget of the policy is spent.
        """
        flight: Flight | None = result.flight
        if flight is not None and not flight.is_entered:
            flight.is_entered = True
            count = self.sample_count(flight) if flight.samples is None else flight.samples
            self.fault_budget.enter(result, count, self.number, flight.treated)
        if self.guards:
            self.fault_budget.check()

    def sample_count(self, flight: Flight) -> int:
        """Return how many samples a batch has, or should have if some fail or a stream ends with it."""
        return self.kind.stream_count or count_of(flight.task.indices, batched=self.kind.batched)

    def leave(self) -> list[Result]:
        """Stop requesting batches; return the answers that are no longer wanted. May be called twice."""
        self.exhausted = True
        self.held = NOTHING
        self.end = 0
        unwanted = list(self.ready.values())
        self.ready.clear()
        self.in_flight.clear()
        self.sent = self.done
        return unwanted
