"""One pass over the batches of a plan: how many were requested, which are in flight, and which are ready.

Batches are numbered from 0, starting where the epoch was entered. An epoch knows nothing about the lifetime of workers.

`Epoch` has batches that are planned: the indices of a map-style dataset, or steps through one shared stream. Any worker
can make any batch of indices. Of a stream that the loader shards, a worker can make any batch if it has read far
enough; a task stays with its worker, and a new worker reads again everything before its task. `OwnStreams` is an epoch
in which every worker has a stream of its own.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from feedline.abc.faults import Fault
from feedline.abc.scheduler import Scheduler, WorkerView
from feedline.delivery.machine.batch_indices import count_of
from feedline.delivery.machine.fault_budget import FaultBudget, Treated
from feedline.delivery.machine.stream_check import StreamCheck
from feedline.errors import BadOption, EmptyBatch
from feedline.faults.policy import policy_of
from feedline.order.plan import Plan, Progress
from feedline.system.failures import is_interrupt
from feedline.types import Position, Result, ResultKind, Task

NOTHING: object = object()
"""Marks the absence of a batch."""


@dataclass(frozen=True)
class Limits:
    """How much may be in flight, and how long it may take."""

    window: int
    """Maximum batches in flight."""
    depth: int
    """Maximum tasks per worker at a time."""
    timeout_s: float = 0.0
    """The longest wait for a batch; 0 for no limit."""
    kills_stuck: bool = False
    """True to replace a worker that takes longer than that, as if it had died."""
    deepens: bool = False
    """True if more may be in flight while batches are small and quick to make."""
    moves: bool = True
    """True if any worker may make any batch: with a seed, and on threads, which share one dataset."""
    runs_ahead: bool = True
    """True if more may be in flight while a batch is late."""
    takes_back: bool = False
    """True to take back the tasks of an epoch that is left, if they have not begun."""
    waits_for_slots: bool = True
    """True if a task that fits in the window waits until a slot is free; False to make its batch in other memory."""


@dataclass(frozen=True)
class Requests:
    """What all tasks of an epoch have in common."""

    batched: bool = True
    """False if single samples are requested."""
    stream_count: int = 0
    """Samples per batch, if batches are cut from a stream; 0 if the dataset has indices."""
    snapshot_every: int = 0
    """Request the states of dataset and iterator with every n-th batch of a worker; 0 for never."""
    shared_seed: int | None = None
    """For torch's data pipes."""


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


class Epoch:
    """One pass over a plan, or the rest of one.

    Args:
        plan: yields the contents of each batch.
        scheduler: assigns batches to workers.
        limits: how much may be in flight, and how long it may take.
        progress: records every delivered batch.
        requests: what all tasks have in common.
        fault_budget: keeps account of failed samples.
        number: the number of the epoch.
        restores: True if workers have to restore the positions in `progress` first; False if they are there already.
    """

    awaits_one = True
    """True if waiting for a batch means waiting for its worker alone, as long as that worker is not late."""
    reads_one_stream = True
    """False if every worker has a stream of its own."""

    checkpoint: Any = None
    """Where the loader records the position in this epoch."""

    def __init__(
        self,
        plan: Plan,
        scheduler: Scheduler,
        limits: Limits,
        progress: Progress,
        requests: Requests,
        fault_budget: FaultBudget | None = None,
        number: int = 0,
        *,
        restores: bool = False,
    ) -> None:
        self.plan, self.scheduler, self.limits, self.progress, self.number = plan, scheduler, limits, progress, number
        self.requests, self.restores = requests, restores
        self.stays = requests.stream_count > 0
        """True if a task stays with the worker it was assigned to."""
        # States depend on the samples that a worker has made.
        self.can_move = not self.stays and not requests.snapshot_every
        """True if another worker would make the same batch."""
        self.deepens = limits.deepens and plan.goes_ahead
        """True if batches may be requested many windows ahead."""
        self.fault_budget = fault_budget or FaultBudget(policy_of(None))
        self.guards = self.fault_budget.guards
        self.stream_check = StreamCheck(is_shared=self.reads_one_stream)
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
        self._outcome: Position | None = None
        """Where the stream has ended."""
        self.unraised: BaseException | None = None
        """What the scheduler raised while a batch was being delivered; raised in place of the next batch."""
        self._already = frozenset(progress.early)

    def open(self, worker_count: int) -> None:
        """Begin, with workers at `Progress.positions` if these are known."""
        self._last = dict(self.progress.positions)
        """Where each worker is after its last answer, or began if it reads a stream: there its replacement resumes."""
        self.scheduler.open(worker_count, self.limits.depth)

    # -- the way of a batch ------------------------------------------------------------------------------------------

    def next(self, workers: Sequence[WorkerView]) -> Flight | None:
        """Return the next task, without id and slot; None if there is none for now."""
        if self.held is NOTHING:
            if self.exhausted:
                return None
            try:
                indices = next(self.plan)
                while self._already and self.sent in self._already:
                    self.sent += 1
                    self.done += 1
                    indices = next(self.plan)
            except StopIteration:
                self.exhausted = True
                return None
            except BaseException as exc:  # from the sampler, such as SystemExit: raised when its batch would have come
                if is_interrupt(exc):
                    raise
                self.exhausted = True
                self.ready[self.sent] = Result(ResultKind.FAILED, -1, -1, exc)
                self.sent += 1
                return None
            self.held = indices  # nothing of the plan is lost if the scheduler raises
        worker = self.scheduler.assign(self.sent + self.progress.turn, self.held, workers)
        if worker is None:
            return None
        if not 0 <= worker < len(workers):
            raise BadOption(f"{self.scheduler!r} chose worker {worker}, but there are workers 0 to {len(workers) - 1}.")
        indices, self.held = self.held, NOTHING
        return self._flight(self.sent, indices, worker)

    def _flight(self, ordinal: int, indices: object, worker: int, treated: Treated | None = None) -> Flight:
        task = Task(0, indices, draw=self.plan.draw(ordinal), snapshot=self.requests.snapshot_every > 0)
        if self.guards:
            treated = treated or self.fault_budget.treat(indices, batched=self.requests.batched)
            task.indices, task.skip = treated.indices, treated.skip
        return Flight(ordinal, worker, task, self.stays, treated)

    def arrived(self, flight: Flight, result: Result) -> None:
        """Accept an answer: put it into `ready` if something is to be delivered for it."""
        position = None if result.notes is None else result.notes.position
        result.position = position
        if position is not None and not self.stays:
            self._last[result.worker] = position
        if result.kind is not ResultKind.ENDED:
            self.ready[flight.ordinal] = result
            return
        # The stream has no batch of this number, and none after it.
        self.end = flight.ordinal if self.end is None else min(self.end, flight.ordinal)
        self.exhausted = True
        self.done += 1
        self._outcome = self._outcome or position

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

    def pop(self, ordinal: int) -> Result:
        """Remove a batch that is delivered or skipped, or the end of a stream, from `ready`."""
        self.done += 1
        return self.ready.pop(ordinal)

    def note(self, ordinal: int, worker: int, position: Position | None) -> None:
        """Record a batch as delivered. The last step does it, so that an interrupt does not lose the batch."""
        progress = self.progress
        state = position if position is None or self.stays or position.has_state else None
        if ordinal == progress.delivered and not progress.early:
            progress.delivered = ordinal + 1  # what `note` would do, but cheaper
        else:
            progress.note(ordinal)
        if state is not None:
            progress.positions[worker] = state

    # -- the rest ----------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """True if a stream has ended, and the training loop has every batch before its end."""
        return self.end is not None and self.numbers.delivered >= self.end

    def complete(self) -> None:
        """Note that the training loop has every batch."""
        self.is_complete = True
        self.progress.outcome = self._outcome

    def resume_for(self, worker: int) -> Position | None:
        """Return where a replacement for this worker resumes."""
        return self._last.get(worker)  # of a stream, it reads again everything before its task

    def pass_over(self, ordinal: int) -> Flight | None:
        """Pass over a batch that has no samples left; return a task in its place if ranks would get out of step."""
        result = self.ready[ordinal]
        if not self.fault_budget.keeps_steps:
            self.pop(ordinal)
            self.note(ordinal, result.worker, result.position)
            self.progress.missing += 1
            return None
        del self.ready[ordinal]
        try:
            treated = self.fault_budget.instead_of(result.flight.treated, batched=self.requests.batched)
        except EmptyBatch as exc:
            self.ready[ordinal] = Result(ResultKind.FAILED, -1, -1, exc)
            return None
        other = self.in_flight[ordinal] = self._flight(ordinal, treated.indices, result.worker, treated)
        return other

    def refused(self, *, holds_back: bool) -> BadOption:
        """Return the error for a scheduler that would make everything wait forever."""
        if holds_back:
            return BadOption(
                f"{self.scheduler!r} holds back batch {self.sent} although every worker is idle: "
                "`assign` must choose a worker when none has anything to do."
            )
        return BadOption(
            f"{self.scheduler!r} delivers none of the finished batches {sorted(self.ready)[:8]} although "
            "nothing else is under way: `take` must choose one of them."
        )

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
        return self.requests.stream_count or count_of(flight.task.indices, batched=self.requests.batched)

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
