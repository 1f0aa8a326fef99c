"""One pass over the batches of a plan: batches requested, finished and delivered.

Three kinds of plans use the same machine. For a map-style dataset, any worker can make any batch. For a stream that the
loader shards, any worker that has read far enough can make a batch; a task stays with its worker. If every worker has
its own stream, see `OwnStreamsEpoch`.

An epoch knows nothing about the lifetime of workers. Batches are numbered from 0, starting where the epoch was entered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from feedline.abc.scheduler import Scheduler, WorkerView
from feedline.delivery.machine.batch_indices import count_of
from feedline.delivery.machine.fault_budget import FaultBudget, Treated
from feedline.delivery.machine.flight import Flight
from feedline.delivery.machine.prefetch import Limits
from feedline.delivery.machine.stream_check import StreamCheck
from feedline.errors import BadOption
from feedline.faults.policy import policy_of
from feedline.order.plan import Plan
from feedline.order.progress import Progress, has_state
from feedline.system.failures import is_interrupt
from feedline.types import Notes, Result, ResultKind, Resume, Task

NOTHING: object = object()
"""Marks the absence of a batch."""


@dataclass(frozen=True)
class Request:
    """What to request from workers."""

    batched: bool = True
    """False if the plan yields single samples."""
    stream_count: int = 0
    """Samples per batch, if batches are cut from a stream; 0 if the dataset has indices."""
    shared_seed: int | None = None
    """For torch's data pipes."""
    snapshot_every: int = 0
    """Request the states of dataset and iterator with every n-th batch; 0 for never."""


@dataclass(frozen=True)
class Origin:
    """Where an epoch is entered."""

    already: tuple[int, ...] = ()
    """Batches of the plan that were already delivered, out of turn."""
    resumes: dict[int, Resume] = field(default_factory=dict)
    """Where the workers' datasets resume, by worker."""
    turn: int = 0
    """The worker whose turn comes first."""
    awaits_openings: bool = False
    """True if the workers are in a state that new ones would not be in."""


@dataclass
class Memory:
    """What outlives an epoch and concerns workers."""

    last_notes: dict[int, Notes] = field(default_factory=dict)
    """The last dataset state that each worker reported."""
    noted_in: dict[int, int] = field(default_factory=dict)
    """The epoch of that state, counted like `passes`; the next one, if the state is from the end of an epoch."""
    passes: int = 0
    """Epochs begun with these workers before the current one."""
    unresumed: dict[int, Resume] = field(default_factory=dict)
    """States to resume from that workers have not received yet, because they had no task."""


class Epoch:
    """One pass over a plan, or the rest of one.

    Args:
        plan: yields the contents of each batch.
        scheduler: assigns batches to workers.
        limits: how much may be in flight, and how long it may take.
        progress: records every delivered batch.
        fault_budget: keeps account of failed samples.
        request: what to request from workers.
        origin: where the epoch is entered.
        number: the number of the epoch.
    """

    checkpoint: Any = None
    """Where the loader records the position in this epoch."""

    awaits_one = True
    """True if waiting for a batch means waiting for its worker alone, as long as that worker is not late."""

    def __init__(
        self,
        plan: Plan,
        scheduler: Scheduler,
        limits: Limits,
        progress: Progress,
        fault_budget: FaultBudget | None = None,
        request: Request | None = None,
        origin: Origin | None = None,
        number: int = 0,
    ) -> None:
        self.scheduler, self.limits, self.progress, self.number = scheduler, limits, progress, number
        self.fault_budget = fault_budget or FaultBudget(policy_of(None))
        self._plan = plan
        self._request = request or Request()
        self.origin = origin or Origin()
        self._guards = self.fault_budget.guards
        self.deepens = limits.deepens and plan.goes_ahead
        # The state of a dataset depends on which samples it made.
        self.can_move = plan.can_move and not self._request.snapshot_every
        self.stays = self._request.stream_count > 0
        """True if a task stays with the worker it was assigned to."""
        self.replays = self.stays
        """True if a new worker reads again everything before its task."""
        self.stream_check = StreamCheck(is_shared=True)
        progress.early.update(self.origin.already)
        self._already = frozenset(self.origin.already)
        self.sent = 0
        """Batches assigned, plus those that need not be."""
        self.done = 0
        """Batches among these that the training loop has, or that need not be delivered."""
        self.in_flight: dict[int, Flight] = {}
        """Tasks in flight, by batch number."""
        self.ready: dict[int, Result] = {}
        """Batches that wait for the training loop, by number."""
        self.exhausted = False
        """True if the plan has no more batches, or none that are wanted."""
        self.held: object = NOTHING
        """The next batch of the plan, while no worker may have it."""
        self.unraised: BaseException | None = None
        """What the scheduler raised while a batch was being delivered; raised in place of the next batch."""
        self._end: int | None = None
        """The number of the first batch past the end of the stream."""
        self._treated: dict[int, Treated] = {}
        """Contents of undelivered batches, if failed samples are not just raised."""
        self._resumes = dict(self.origin.resumes)
        self._entered = dict(self._resumes)
        self._memory = Memory()
        self._unopened: set[int] = set()
        """Workers that have not reported yet in which state they began."""
        self._openings: dict[int, Notes] = {}
        """States in which the other workers began, if not known before."""
        self.taken: tuple[Any, ...] | None = None
        """What `take_back` needs after a batch was delivered."""

    def open(self, worker_count: int, memory: Memory) -> None:
        """Begin, with workers whose states may be known."""
        self._memory = memory
        self._resumes = {**memory.unresumed, **self.origin.resumes}
        self._entered = dict(self._resumes)
        for worker in self._entered:  # older reports are out of date
            memory.last_notes.pop(worker, None)
        memory.unresumed = {}
        self._unopened = set(range(worker_count)) if self.origin.awaits_openings else set()
        self.scheduler.open(worker_count, self.limits.depth)

    # -- requests ----------------------------------------------------------------------------------------------------

    def next(self) -> object:
        """Return the contents of the next batch; `NOTHING` if there is none for now."""
        if self.held is not NOTHING:
            return self.held
        if self.exhausted:
            return NOTHING
        try:
            indices = next(self._plan)
            while self._already and self.sent in self._already:
                self.sent += 1
                self.done += 1
                indices = next(self._plan)
        except StopIteration:
            self.exhausted = True
            return NOTHING
        except BaseException as exc:  # from the sampler, such as SystemExit: raised when its batch would have come
            if is_interrupt(exc):
                raise
            self.exhausted = True
            self.ready[self.sent] = Result(ResultKind.FAILED, -1, -1, exc)
            self.sent += 1
            return NOTHING
        return indices

    def assign(self, indices: object, workers: list[WorkerView]) -> int | None:
        """Return the worker that makes the next batch; None to hold it back until a worker has answered."""
        self.held = indices  # first: nothing of the plan is lost if the scheduler raises
        worker = self.scheduler.assign(self.sent + self.origin.turn, indices, workers)
        if worker is None:
            return None
        if not 0 <= worker < len(workers):
            raise BadOption(f"{self.scheduler!r} chose worker {worker}, but there are workers 0 to {len(workers) - 1}.")
        self.held = NOTHING
        return worker

    def task(self, ordinal: int, indices: object, worker: int, treated: Treated | None = None) -> Task:
        """Return the task for a batch, without id and slot."""
        resume = self._resumes.pop(worker, None) if self._resumes else None
        snapshot = self._request.snapshot_every > 0
        task = Task(0, indices, draw=self._plan.draw(ordinal), resume=resume, snapshot=snapshot)
        if self._guards:
            treated = treated or self.fault_budget.treat(indices, batched=self._request.batched)
            self._treated[ordinal] = treated
            task.indices, task.skip = treated.indices, treated.skip
        return task

    def instead_of(self, ordinal: int) -> Treated:
        """Return the contents of a substitute for a batch that has no samples left and must not be left out.

        Raises:
            EmptyBatch: there is no substitute.
        """
        return self.fault_budget.instead_of(self._treated[ordinal], batched=self._request.batched)

    # -- answers -----------------------------------------------------------------------------------------------------

    def arrived(self, flight: Flight, result: Result) -> None:
        """Accept the answer to a task of this epoch."""
        del self.in_flight[flight.ordinal]
        if self._unopened:
            self._note_opening(result)
        if result.kind is not ResultKind.ENDED:
            self.ready[flight.ordinal] = result
            return
        # The stream has no batch of this number, and none after it.
        self._end = flight.ordinal if self._end is None else min(self._end, flight.ordinal)
        self.exhausted = True
        self.done += 1
        if result.notes is not None:
            self.progress.notes[result.worker] = result.notes

    @property
    def expected(self) -> int:
        """The lowest number that is not delivered."""
        return self.progress.delivered

    @property
    def is_over(self) -> bool:
        """True if a stream has ended, and the training loop has every batch before its end."""
        return self._end is not None and self.progress.delivered >= self._end

    def take(self) -> int | None:
        """Return the number of the finished batch to deliver next, None if it is not ready."""
        if not self.ready:
            return None
        ordinal = self.scheduler.take(self.ready, self.expected)
        if ordinal is not None and ordinal not in self.ready:
            raise BadOption(
                f"{self.scheduler!r} delivers batch {ordinal}, which is not among the finished batches "
                f"{sorted(self.ready)[:8]}: `take` must choose one of them, or None."
            )
        return ordinal

    def note_faults(self, ordinal: int, result: Result) -> None:
        """Log the faults of a batch that is about to be delivered; the batch stays in `ready` if there were too many.

        Raises:
            TooManyBadSamples: the budget of the policy is spent.
        """
        fault_budget = self.fault_budget
        if not (self._guards or result.notes is not None):
            return
        treated = self._treated.get(ordinal)
        if treated is not None and not treated.is_entered:
            count = self._request.stream_count or count_of(treated.indices, batched=self._request.batched)
            fault_budget.enter(result, count, self.number, treated)
        elif treated is None and result.notes is not None:
            fault_budget.enter(result, 0, self.number)
        if self._guards:
            fault_budget.check()

    def sample_count(self, flight: Flight) -> int:
        """Return how many samples a batch has, or should have if some fail or a stream ends with it."""
        return self._request.stream_count or count_of(flight.task.indices, batched=self._request.batched)

    def pop(self, ordinal: int) -> Result:
        """Remove a batch that is delivered or skipped."""
        self._treated.pop(ordinal, None)
        self.done += 1
        return self.ready.pop(ordinal)

    def end_stream(self, ordinal: int) -> list[Result]:
        """Note the end of one worker's own stream; return the answers that are no longer wanted."""
        raise AssertionError("the end of a common stream is noted when it arrives")

    # -- deliveries --------------------------------------------------------------------------------------------------

    def ask_again(self, worker: int) -> None:
        """Request another batch from a worker whose batch was taken, if every worker has its own stream."""

    def note(self, ordinal: int, worker: int, notes: Notes | None, read: int | None) -> None:
        """Record a batch as delivered. This is the last step of a delivery, so that an interrupt loses nothing."""
        progress = self.progress
        if notes is None:
            self.taken = (ordinal, worker, progress.notes.get(worker) if progress.notes else None)
            progress.note(ordinal)
            return
        self.taken = (ordinal, worker, progress.notes.get(worker))
        progress.note(ordinal)
        if self.stays or has_state(notes):
            progress.notes[worker] = notes

    def take_back(self) -> None:
        """Undo the last delivery, if there was one: an interrupt kept the batch from the training loop."""
        if self.taken is None:
            return
        ordinal, worker, before = self.taken
        self.progress.forget(ordinal)
        if before is None:
            self.progress.notes.pop(worker, None)
        else:
            self.progress.notes[worker] = before

    # -- workers that are new, or began in a state of their own ------------------------------------------------------

    def resume_for(self, worker: int) -> Resume | None:
        """Return where a replacement for this worker resumes."""
        known = self._entered.get(worker)
        if self.replays:  # it resumes by reading again everything before its task
            return known
        notes = self._memory.last_notes.get(worker)
        return known if notes is None else Resume(notes.dataset)

    def owe(self, worker: int, resume: Resume) -> None:
        """Send a worker the state to resume from with its next task."""
        self._resumes[worker] = resume

    def is_opened(self) -> bool:
        """True if a state can be saved: the states in which the workers began are known."""
        return not self._unopened

    def unopened(self) -> Flight | None:
        """Return a task whose answer will contain the state in which its worker began; None if there is none."""
        return next((flight for flight in self.in_flight.values() if flight.worker in self._unopened), None)

    def assume_openings(self) -> bool:
        """Take the states that workers last reported as those in which they began; False if one is missing."""
        tasked = {flight.worker for flight in self.in_flight.values()}
        for worker in self._unopened:
            notes = self._memory.last_notes.get(worker)
            if notes is not None:
                self._openings[worker] = notes
        self.add_openings(self.progress)
        if any(worker in tasked and worker not in self.progress.notes for worker in self._unopened):
            return False
        self._unopened.clear()
        return True

    def _note_opening(self, result: Result) -> None:
        if result.worker in self._unopened:
            self._unopened.discard(result.worker)
            if result.notes is not None and result.notes.opening is not None:
                self._openings[result.worker] = result.notes.opening
                self.add_openings(self.progress)

    def add_openings(self, progress: Progress) -> None:
        """Add the states in which workers began to a progress of this epoch, where it has no later ones."""
        for worker, notes in list(self._openings.items()):
            progress.notes.setdefault(worker, notes)

    def leave(self) -> list[Result]:
        """Stop requesting batches; return the answers that are no longer wanted. May be called twice."""
        self.exhausted = True
        self.held = NOTHING
        # Workers that had no batch left to make must still receive the states of their datasets.
        self._memory.unresumed = {worker: Resume(resume.dataset) for worker, resume in self._resumes.items()}
        unwanted = list(self.ready.values())
        self._treated.clear()
        self.ready.clear()
        self.in_flight.clear()
        self.sent = self.done
        return unwanted
