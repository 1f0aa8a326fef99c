"""One pass over the batches of a plan: what is asked for next, what has come, what the training loop has.

Three kinds of plans go through the same machine. The batches of a map-style dataset can be made by any worker. The
batches of a stream that the loader shares out can be made by any worker that has read as far; a task stays with its
worker. If every worker has a stream of its own, see `OwnStreamsEpoch`.

An epoch knows nothing of workers' lives. Batches are numbered from 0, from where the epoch was entered.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from feedline.abc.scheduler import Scheduler, WorkerView
from feedline.delivery.machine.batch_indices import count_of
from feedline.delivery.machine.fault_budget import FaultBudget, Treated
from feedline.delivery.machine.flight import Flight
from feedline.delivery.machine.prefetch import Limits
from feedline.delivery.machine.stream_check import Message, OwnStreams, SharedStream
from feedline.errors import BadOption
from feedline.faults.policy import policy_of
from feedline.order.plan import Plan
from feedline.order.progress import Progress, has_state
from feedline.system.failures import is_interrupt
from feedline.types import Notes, Result, ResultKind, Resume, Task

NOTHING: Any = object()
"""Stands for a batch where there is none."""


@dataclass(frozen=True)
class Request:
    """What workers are asked for."""

    batched: bool = True
    """False if the plan is of single samples."""
    stream_count: int = 0
    """Samples of a batch, if batches are cut from a stream; 0 if the dataset has indices."""
    shared_seed: int | None = None
    """For torch's data pipes."""
    snapshot_every: int = 0
    """Ask for the states of dataset and iterator with every n-th batch; 0 for never."""


@dataclass(frozen=True)
class Origin:
    """Where an epoch is entered."""

    already: tuple[int, ...] = ()
    """Batches of the plan that were delivered before, out of turn."""
    resumes: dict[int, Resume] = field(default_factory=dict)
    """Where the workers' datasets go on, by worker."""
    turn: int = 0
    """Whose turn the first batch is."""
    awaits_openings: bool = False
    """True if the workers are in a state that new ones would not be in."""


@dataclass
class Memory:
    """What outlives an epoch, as far as workers are concerned."""

    last_notes: dict[int, Notes] = field(default_factory=dict)
    """The last states of its dataset that each worker told."""
    unresumed: dict[int, Resume] = field(default_factory=dict)
    """Where datasets of workers go on that have not heard of it, for want of a task."""


class Epoch:
    """One pass over a plan, or the rest of one.

    Args:
        plan: yields what each batch consists of.
        scheduler: who works on what.
        limits: how much may be in flight, and how long it may take.
        progress: told about every batch that is delivered.
        fault_budget: keeps account of samples that fail.
        request: what workers are asked for.
        origin: where the epoch is entered.
        number: the number of the epoch.
    """

    checkpoint: Any = None
    """Where the loader notes how far this epoch is."""

    awaits_one = True
    """True if whoever waits for a batch waits for its worker alone, as long as that is not late."""

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
        self._origin = origin or Origin()
        self._guards = self.fault_budget.guards
        self.deepens = limits.deepens and plan.goes_ahead
        # What a dataset remembers depends on which samples it made.
        self.can_move = plan.can_move and not self._request.snapshot_every
        self.stays = self._request.stream_count > 0
        """True if a task stays with the worker that it was given to."""
        self.replays = self.stays
        """True if a worker that is new reads again all that comes before its task."""
        self._stream: SharedStream | OwnStreams = SharedStream()
        progress.early.update(self._origin.already)
        self._already = frozenset(self._origin.already)
        self.sent = 0
        """Batches given out, and those that need not be."""
        self.done = 0
        """Those of them that the training loop has, or that need not be delivered."""
        self.in_flight: dict[int, Flight] = {}
        """By number."""
        self.ready: dict[int, Result] = {}
        """Batches that wait for the training loop, by number."""
        self.exhausted = False
        """True if the plan has no more batches, or none that are wanted."""
        self.held: Any = NOTHING
        """The next batch of the plan, if no worker may have it yet."""
        self.unraised: BaseException | None = None
        """What the scheduler raised when a batch was there; the training loop gets it in place of the next batch."""
        self._end: int | None = None
        """The first batch that a stream of samples does not have any more."""
        self._treated: dict[int, Treated] = {}
        """What batches that are not delivered consist of, if samples that fail are not just raised."""
        self._resumes = dict(self._origin.resumes)
        self._entered = dict(self._resumes)
        self._memory = Memory()
        self._unopened: set[int] = set()
        """Workers that have not told yet in which state they began."""
        self._openings: dict[int, Notes] = {}
        """In which state the others did, if it was not known before."""
        self.taken: tuple[Any, ...] | None = None
        """What `take_back` needs, after a batch was delivered."""

    def open(self, worker_count: int, memory: Memory) -> None:
        """Begin, with workers of which something may be known."""
        self._memory = memory
        self._resumes = {**memory.unresumed, **self._origin.resumes}
        self._entered = dict(self._resumes)
        for worker in self._entered:  # what it told before is of another time
            memory.last_notes.pop(worker, None)
        memory.unresumed = {}
        self._unopened = set(range(worker_count)) if self._origin.awaits_openings else set()
        self.scheduler.open(worker_count, self.limits.depth)

    # -- what is asked for -------------------------------------------------------------------------------------------

    def next(self) -> Any:
        """Return what the next batch consists of; `NOTHING` if there is none for now."""
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
        except BaseException as exc:  # the sampler's own, such as SystemExit: raised when its batch would have come
            if is_interrupt(exc):
                raise
            self.exhausted = True
            self.ready[self.sent] = Result(ResultKind.FAILED, -1, -1, exc)
            self.sent += 1
            return NOTHING
        return indices

    @property
    def turn(self) -> int:
        """Whose turn the first batch is."""
        return self._origin.turn

    def assign(self, indices: Any, workers: list[WorkerView]) -> int | None:
        """Return who makes the next batch; None if it is held back, until a worker has answered."""
        self.held = indices  # first: nothing of the plan is lost if the scheduler raises
        worker = self.scheduler.assign(self.sent + self.turn, indices, workers)
        if worker is None:
            return None
        if not 0 <= worker < len(workers):
            raise BadOption(f"{self.scheduler!r} chose worker {worker}, but there are workers 0 to {len(workers) - 1}.")
        self.held = NOTHING
        return worker

    def task(self, ordinal: int, indices: Any, worker: int, treated: Treated | None = None) -> Task:
        """Return the task for a batch, without number and slot."""
        resume = self._resumes.pop(worker, None) if self._resumes else None
        snapshot = self._request.snapshot_every > 0
        task = Task(0, indices, draw=self._plan.draw(ordinal), resume=resume, snapshot=snapshot)
        if self._guards:
            treated = treated or self.fault_budget.treat(indices, batched=self._request.batched)
            self._treated[ordinal] = treated
            task.indices, task.skip = treated.indices, treated.skip
        return task

    def instead_of(self, ordinal: int) -> Treated:
        """Return what to make a batch of when no sample of its own is left, and it must not be left out.

        Raises:
            EmptyBatch: there is nothing.
        """
        return self.fault_budget.instead_of(self._treated[ordinal], batched=self._request.batched)

    # -- what has come -----------------------------------------------------------------------------------------------

    def arrived(self, flight: Flight, result: Result) -> None:
        """Take the answer to a task of this epoch."""
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
        """True if a stream has come to its end, and the training loop has what came before."""
        return self._end is not None and self.progress.delivered >= self._end

    def take(self) -> int | None:
        """Return the finished batch that comes next, None if it is not there."""
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
        """Log what failed in a batch that is about to be delivered; it stays where it is if that was too much.

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
        """Take a batch out, which is delivered or passed over."""
        self._treated.pop(ordinal, None)
        self.done += 1
        return self.ready.pop(ordinal)

    def end_stream(self, ordinal: int) -> list[Result]:
        """Take note of the end of one worker's own stream; returns answers that nobody wants any more."""
        raise AssertionError("the end of a common stream is noted when it arrives")

    def look_at(self, notes: Notes) -> Message | None:
        """Return what to tell of a stream that is not what it has to be."""
        return self._stream.look_at(notes)

    # -- what the training loop has ----------------------------------------------------------------------------------

    def ask_again(self, worker: int) -> None:
        """Ask for another batch of a worker whose batch was taken, if every worker has a stream of its own."""

    def note(self, ordinal: int, worker: int, notes: Notes | None, read: int | None) -> None:
        """Note that a batch is delivered: the last that is done about it, so that an interrupt loses nothing."""
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
        """Forget that the last batch was delivered, if it was: an interrupt kept it from the training loop."""
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
        """Return where a worker goes on that takes the place of another."""
        known = self._entered.get(worker)
        if self.replays:  # it goes on by reading again what comes before its task
            return known
        notes = self._memory.last_notes.get(worker)
        return known if notes is None else Resume(notes.dataset)

    def owe(self, worker: int, resume: Resume) -> None:
        """Tell a worker with its next task where to go on."""
        self._resumes[worker] = resume

    def is_opened(self) -> bool:
        """True if a state can be told: it is known in which states the workers began."""
        return not self._unopened

    def unopened(self) -> Flight | None:
        """Return a task whose answer will tell in which state its worker began, None if there is no such task."""
        return next((flight for flight in self.in_flight.values() if flight.worker in self._unopened), None)

    def assume_openings(self) -> bool:
        """Take the last states that workers told for those in which they began; False if one has told none."""
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
        """Add in which states workers began to a progress of this epoch, where it knows nothing later of them."""
        for worker, notes in list(self._openings.items()):
            progress.notes.setdefault(worker, notes)

    def leave(self) -> list[Result]:
        """Ask for nothing any more; returns answers that nobody wants. May be called twice."""
        self.exhausted = True
        self.held = NOTHING
        # Workers that had no batch left to make still have to hear what their datasets were at.
        self._memory.unresumed = {worker: Resume(resume.dataset) for worker, resume in self._resumes.items()}
        unwanted = list(self.ready.values())
        self._treated.clear()
        self.ready.clear()
        self.in_flight.clear()
        self.sent = self.done
        return unwanted
