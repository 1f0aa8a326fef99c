"""The machine that gives out tasks, takes in answers, replaces workers and says which batch comes next.

It never waits, reads no clock, and touches no process, socket or shared memory. It is told what happens, by method
calls: the training loop asks (`ask`, `take`, `wait`); a worker answered, died, grew, was started or could not be;
tasks were taken back; the time is `now_s`; a method is to be called in all workers; the epoch is left. What is to be
done about it stands in `decisions`, in order, as tuples that begin with one of the words below. A driver does them, and
tells what came of it. The same machine runs live, with an engine, and in a simulated world, with none.

What holds whenever it has been told something:

- A task is in `_flights` from the moment it is given to a worker until it is answered or dropped. Its number is never
  used again, so that a late answer of a worker that was replaced cannot be taken for that of another task.
- A slot belongs to a task in flight, to a batch that is ready, or to the training loop; whoever lets go releases it.
- Every batch of the epoch is in flight, ready, done, or not asked for yet. A batch is noted as delivered by
  `Epoch.note`, which the driver calls last.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from feedline.abc.scheduler import WorkerView
from feedline.core.counters import Counters
from feedline.core.epoch import NOTHING, Epoch, Memory
from feedline.core.flight import Flight
from feedline.core.prefetch import RUN_AHEAD, Pace, window_size
from feedline.core.recovery import Doubts, Recovery, Redone, Seen
from feedline.core.splitting import Group, Splitter
from feedline.errors import BadOption, EmptyBatch, FeedlineWarning, WorkerRestarted, WorkerTimeout
from feedline.state.progress import has_state
from feedline.types import Call, Draw, Notes, Parcel, Result, ResultKind, Resume, Task

GIVE, TAKE_BACK, START, LOOK_AT = "give", "take back", "start", "look at"
"""What a decision begins with, and what follows: (GIVE, worker, task): submit the task. (TAKE_BACK, worker, count):
revoke so many tasks that it has not begun, None for all, and tell `taken_back`. (START, worker): start another worker
in its place, and tell `started` or `not_started`. (LOOK_AT, worker, kills): it does not answer; see what it is doing,
end it if `kills`, and tell `seen`."""

Decision = tuple[Any, ...]

_START_UP_S = 2.0
"""Time a worker has for getting ready before it can count as late; importing torch takes about one second."""

_NOT_READY = -1


class SlotSource(Protocol):
    """Where slots come from. The arena's books, as far as the machine needs them; a counter in the simulation."""

    def are_left(self) -> bool:
        """True while another task can be given what it needs."""

    def acquire(self, worker: int) -> int:
        """Return a slot for a task of a worker; -1 if it has to do without."""

    def release(self, slot: int, used: int | None = None) -> None:
        """Take back a slot in which nothing lies."""

    def discard(self, result: Result) -> None:
        """Take back the slot of a batch that nobody wants."""

    def fit_messages(self) -> int:
        """Return how many batches of one worker can wait for the training loop in messages."""


@dataclass(slots=True)
class _Replacement:
    """A worker that is about to be replaced, and what it leaves."""

    death: BaseException | None
    """None if it has merely grown."""
    begun: Flight | None
    waiting: list[Flight]


class Machine:
    """Decides; never waits, never touches a worker. Used by one thread at a time.

    Args:
        worker_count: how many workers there are.
        slots: what batches are written to.
        recovery: what is done about deaths.
        counters: told what happened.
        splitter: cuts tasks into parts, if several workers share a batch.
        binds: True if what a worker makes may depend on which worker it is: see `_may_move`.
        now_s: the time.
    """

    def __init__(
        self,
        worker_count: int,
        slots: SlotSource,
        recovery: Recovery,
        counters: Counters,
        *,
        splitter: Splitter | None = None,
        binds: bool = False,
        now_s: float = 0.0,
    ) -> None:
        self.now_s = now_s
        """The time, on any clock that does not go back. Whoever tells the machine something sets it first."""
        self.workers = [WorkerView(number, since_s=now_s + _START_UP_S) for number in range(worker_count)]
        self.decisions: deque[Decision] = deque()
        self.unsaid: list[tuple[str, type[FeedlineWarning]]] = []
        """What the user is to be told, when there is nothing that an exception could disturb."""
        self.epoch: Epoch | None = None
        self.fatal: BaseException | None = None
        """After this there is no going on."""
        self.memory = Memory()
        self.passes = 0
        """Epochs that were begun with these workers before the current one."""
        self._slots = slots
        self._recovery = recovery
        self._counters = counters
        self._splitter = splitter
        self._pace = Pace()
        self._window = 0
        """Batches that may be in flight."""
        self._begun_s = now_s
        self._flights: dict[int, Flight] = {}
        self._next_id = 0
        self._turns = 0
        self._answers = 0
        self._parked: dict[int, list[Flight]] = {}
        """Workers that are to be replaced as soon as they have nothing to do, and the tasks that wait for that."""
        self._leaving: dict[int, _Replacement] = {}
        """Workers in whose place another is being started."""
        self._owed: dict[int, Resume] = {}
        """Where workers that are new go on, until they are told."""
        self._moving: tuple[int, int] | None = None
        """From whom a task is being taken back, and for whom."""
        self._has_begun_all: set[int] = set()
        """Workers that had nothing waiting when they were last asked."""
        self._binds = binds
        self._bound = False
        self._unbound: set[int] = set()
        """Workers that have made a batch, and found nothing that binds it to them."""
        self._deadline_s: float | None = None
        """Until when the batch that the training loop waits for has to be there; other batches do not extend it."""
        self._late: Flight | None = None
        """The task of a worker that is looked at, because it does not answer."""
        self._stuck: dict[int, WorkerTimeout] = {}
        """Workers that were ended because they did not answer, and what is to be said of it."""
        self._failed_call: BaseException | None = None
        """What a call in a worker raised; the training loop gets it with the next batch."""
        self._told_of: Call | None = None

    # -- the training loop -------------------------------------------------------------------------------------------

    @property
    def is_busy(self) -> bool:
        """True while tasks are in flight."""
        return bool(self._flights)

    def begin(self, epoch: Epoch) -> None:
        """Begin an epoch; the one before has been left."""
        self.epoch = epoch
        self._begun_s = self.now_s
        self._recovery.begin_epoch()
        epoch.open(len(self.workers), self.memory)
        self.fill()

    def ask(self) -> None:
        """The training loop asks for the next batch.

        Raises:
            Exception: what a method call raised in a worker.
        """
        self._deadline_s = None
        if self._failed_call is not None:
            failed, self._failed_call = self._failed_call, None
            raise failed

    def take(self) -> int:
        """Return the number of the batch that is delivered now; negative if it is not there yet.

        Raises:
            StopIteration: the epoch is over.
            BadOption: the scheduler decides what cannot be.
            TooManyBadSamples: the budget of the error policy is spent.
        """
        epoch = self.epoch
        assert epoch is not None
        while True:
            ordinal = epoch.take()
            if ordinal is not None:
                result = epoch.ready[ordinal]
                kind = result.kind
                epoch.keep_account(ordinal, result)
                if kind is ResultKind.DONE or kind is ResultKind.FAILED:
                    return ordinal
                del result
                if kind is ResultKind.ENDED:
                    for unwanted in epoch.end_stream(ordinal):
                        self._slots.discard(unwanted)
                else:
                    self._pass_over(epoch, ordinal)
                continue
            if epoch.is_over:
                break
            if epoch.in_flight:
                return _NOT_READY
            is_through, before = epoch.sent == epoch.done, epoch.sent
            if is_through or not self._flights:
                self.fill()
            if epoch.sent > (epoch.done if is_through else before):
                continue
            if self._flights and not (is_through and epoch.exhausted):
                return _NOT_READY  # until tasks are done that nobody wants any more, and whose slots are needed
            if is_through and epoch.held is NOTHING:
                break
            raise self._refused(epoch, holds_back=is_through)
        self.leave_epoch()
        if epoch.account is not None:
            epoch.account.check(ended=True)
        raise StopIteration

    def _refused(self, epoch: Epoch, *, holds_back: bool) -> BadOption:
        """Return what to say of a scheduler for which everybody would wait forever."""
        if holds_back:
            return BadOption(
                f"{epoch.scheduler!r} holds back batch {epoch.sent} although every worker is idle: "
                "`assign` must choose a worker when none has anything to do."
            )
        return BadOption(
            f"{epoch.scheduler!r} delivers none of the finished batches {sorted(epoch.ready)[:8]} although "
            "nothing else is under way: `take` must choose one of them."
        )

    def _pass_over(self, epoch: Epoch, ordinal: int) -> None:
        """Pass over a batch of which no sample is left, unless ranks would get out of step."""
        result = epoch.ready[ordinal]
        worker, notes = result.worker, result.notes
        if epoch.account is not None and epoch.account.keeps_steps:
            del epoch.ready[ordinal]
            try:
                treated = epoch.instead_of(ordinal)
            except EmptyBatch as exc:
                epoch.ready[ordinal] = Result(ResultKind.FAILED, -1, -1, exc)
            else:
                self._begin(epoch, ordinal, epoch.task(ordinal, treated.indices, worker, treated), worker)
            return
        told = None if notes is None else epoch.look_at(notes)
        if told is not None:
            self.unsaid.append(told)
        epoch.pop(ordinal)
        epoch.note(ordinal, worker, notes, result.read)
        epoch.progress.missing += 1
        epoch.ask_again(worker)
        self.fill()

    def fill(self) -> None:
        """Give out tasks until the window is full."""
        epoch = self.epoch
        assert epoch is not None
        limits = epoch.limits
        if epoch.deepens and not epoch.sent & 15:
            self._window = window_size(limits, self._pace.typical_s(), self._slots.fit_messages())
        elif not epoch.deepens:
            self._window = limits.window
        while epoch.sent - epoch.done < self._window and (self._slots.are_left() or not self._flights):
            if not self._send_one(epoch):
                break

    def _send_one(self, epoch: Epoch) -> bool:
        """Give out the next task; False if there is none or no worker may have it."""
        indices = epoch.next()
        if indices is NOTHING:
            return False
        worker = epoch.assign(indices, self.workers)
        if worker is None:
            return False
        ordinal = epoch.sent
        self._begin(epoch, ordinal, epoch.task(ordinal, indices, worker), worker)
        epoch.sent = ordinal + 1
        return True

    def _begin(self, epoch: Epoch, ordinal: int, task: Task, worker: int) -> None:
        """Give a task to a worker, or its parts to this one and those after it."""
        slot = self._slots.acquire(worker)
        cut = None if self._splitter is None else self._splitter.cut(task.indices, slot)
        if cut is None:
            flight = Flight(ordinal, worker, task, epoch.stays)
            epoch.in_flight[ordinal] = flight
            self._give(flight, slot)
            return
        group, parts = cut
        group.draw = task.draw
        for number, (start, rows, part) in enumerate(parts):
            draw = Draw(task.draw.key, task.draw.first + task.draw.stride * start, task.draw.stride)
            piece = Task(0, rows, shared_seed=task.shared_seed, part=part, draw=draw)
            flight = Flight(ordinal, (worker + number) % len(self.workers), piece, group=group)
            epoch.in_flight[ordinal] = flight
            self._give(flight, slot)

    def _give(self, flight: Flight, slot: int) -> None:
        """Give a task to its worker, under a new number."""
        task = flight.task
        self._next_id += 1
        task.id, task.slot, task.epoch = self._next_id, slot, self.passes
        self._flights[task.id] = flight
        self._hand_over(flight)

    def _hand_over(self, flight: Flight) -> None:
        worker = flight.worker
        if self._parked and worker in self._parked and not flight.is_call:
            self._parked[worker].append(flight)
        else:
            self.decisions.append((GIVE, worker, flight.task))
        self._turns += 1
        flight.turn = self._turns
        view = self.workers[worker]
        if view.outstanding == 0 and view.since_s < self.now_s:
            view.since_s = self.now_s
        view.outstanding += 1

    def not_given(self, task_id: int, exc: Exception) -> None:
        """A task could not be sent, for what it consists of: that is raised when its batch would have come."""
        flight = self._flights.pop(task_id)
        self.workers[flight.worker].outstanding -= 1
        if flight.task.resume is not None:
            self._tell_with_the_next(flight.worker, flight.task.resume)
        if flight.is_call:
            self._failed_call = exc
        elif flight.suspect is not None:
            self._settle(flight.suspect, Result(ResultKind.FAILED, flight.worker, task_id, exc))
        else:
            self._answer(flight, Result(ResultKind.FAILED, -1, -1, exc))

    def _tell_with_the_next(self, worker: int, resume: Resume) -> None:
        """Tell a worker with the next task that it is given where to go on."""
        assert self.epoch is not None
        for what, other, *rest in self.decisions:
            if what is GIVE and other == worker and type(rest[0].indices) is not Call:
                rest[0].resume = resume
                return
        self.epoch.owe(worker, resume)

    def call(self, call: Call) -> None:
        """Have a method of the dataset called in every worker, after the tasks it was given already."""
        for view in self.workers:
            self._give(Flight(-1, view.id, Task(0, call), is_call=True), -1)

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self) -> tuple[float | None, int | None]:
        """Say how long to wait, and for whom; None for as long as it takes, and for anybody.

        If the batch that is due is late, work is found for other workers meanwhile: do what is in `decisions`, and ask
        again.
        """
        epoch = self.epoch
        assert epoch is not None
        now_s, limits, scheduler = self.now_s, epoch.limits, epoch.scheduler
        worker: int | None = None
        pause_s: float | None = None
        due = epoch.in_flight.get(epoch.expected) if scheduler.in_order else None
        if due is not None and due.group is None:
            pause_s = self.workers[due.worker].since_s + scheduler.grace_s(self._pace.typical_s()) - now_s
            if pause_s > 0:
                worker = due.worker
            else:
                pause_s = self._help_idle_workers(epoch)
        if limits.timeout_s:
            if self._deadline_s is None:
                self._deadline_s = now_s + limits.timeout_s
            left_s = max(0.0, self._deadline_s - now_s)
            pause_s = left_s if pause_s is None else min(pause_s, left_s)
        return pause_s, worker

    def _help_idle_workers(self, epoch: Epoch) -> float | None:
        """Find work for idle workers; returns after how many seconds to look again, None if there is no need."""
        workers, scheduler = self.workers, epoch.scheduler
        typical_s = self._pace.typical_s()
        while any(not worker.outstanding for worker in workers):
            move = scheduler.relieve(workers, self.now_s, typical_s) if epoch.can_move else None
            if move is not None:
                self._check_move(epoch, *move)
                if move[0] not in self._has_begun_all and self._may_move(*move):
                    self._moving = move
                    self.decisions.append((TAKE_BACK, move[0], 1))
                    break
            is_full = epoch.sent - epoch.done >= epoch.limits.window * RUN_AHEAD
            if is_full or not (self._slots.are_left() or not self._flights):
                return None
            if not self._send_one(epoch):
                break
            self._counters.run_ahead += 1
        return scheduler.grace_s(typical_s)

    def _check_move(self, epoch: Epoch, source: int, target: int) -> None:
        """Refuse what would never end: work that goes to a worker who has work."""
        workers = self.workers
        if not 0 <= source < len(workers) or not 0 <= target < len(workers) or workers[target].outstanding:
            raise BadOption(
                f"{epoch.scheduler!r} gives work of worker {source} to worker {target}: `relieve` must choose among "
                f"workers 0 to {len(workers) - 1}, and the second must have nothing to do."
            )

    def _may_move(self, source: int, target: int) -> bool:
        """True if work may go from one worker to the other without changing what comes out.

        Not from one that is still to hear a call, or where to go on: what is taken back and has to stay is given again
        behind the rest, and the tasks after it are not to be made before it.

        If batches may depend on their workers, both must have made one, and nobody may have found that it does. The
        task that is late may still be the first that draws a random number: then the numbers are not those of a run in
        which it was not late. Nobody can know before.
        """
        if any(
            flight.worker == source and (flight.is_call or flight.task.resume is not None)
            for flight in self._flights.values()
        ):
            return False
        return not self._binds or (not self._bound and {source, target} <= self._unbound)

    def judge_lateness(self) -> None:
        """See whether the batch that the training loop waits for is there in time; otherwise look at its worker.

        Raises:
            WorkerTimeout: it is late, and nobody has anything to do.
        """
        epoch = self.epoch
        if self._deadline_s is None or self.now_s < self._deadline_s or epoch is None or epoch.take() is not None:
            return
        due = epoch.in_flight.get(epoch.expected) or next(iter(epoch.in_flight.values()), None)
        self._look_at(epoch, due)

    def _look_at(self, epoch: Epoch, due: Flight | None) -> None:
        limits = epoch.limits
        alone = None if due is None or due.group is not None else due.worker
        late = self._oldest_of(alone)  # which may be of an epoch that was left
        if late is None:
            raise WorkerTimeout(f"DataLoader timed out after {limits.timeout_s} seconds.")
        since_s = self.workers[late.worker].since_s
        if (limits.kills_stuck or late.stays) and self.now_s - since_s < limits.timeout_s:
            self._deadline_s = since_s + limits.timeout_s  # it is new, or has answered since and is merely slow
            return
        self._late = late
        self._deadline_s = self.now_s + limits.timeout_s
        self.decisions.append((LOOK_AT, late.worker, limits.kills_stuck and self._recovery.may_restart))

    def seen(self, worker: int, seen: Seen) -> None:
        """A worker that does not answer was looked at; its death follows, if it was ended.

        Raises:
            WorkerTimeout: it was not ended.
        """
        late, self._late = self._late, None
        assert late is not None
        assert self.epoch is not None
        elapsed_s = self.now_s - self.workers[worker].since_s
        told = self._recovery.told_of_stuck(late, self.epoch.limits, elapsed_s, seen)
        if not seen.is_killed:
            raise told
        self._stuck[worker] = told

    def _oldest_of(self, worker: int | None) -> Flight | None:
        """Return the task that a worker, or any, has been at for longest; None if there is none."""
        held = [flight for flight in self._flights.values() if worker is None or flight.worker == worker]
        return min(held, key=_turn, default=None)

    def await_openings(self) -> bool:
        """True while a task is in flight whose answer tells in which state its worker began the epoch."""
        epoch = self.epoch
        assert epoch is not None
        awaited = epoch.unopened()
        timeout_s = epoch.limits.timeout_s
        if awaited is None:
            epoch.assume_openings()
            self._deadline_s = None  # nobody waits for a batch
        elif timeout_s and self._deadline_s is None:
            self._deadline_s = self.now_s + timeout_s
        elif self._deadline_s is not None and self.now_s >= self._deadline_s:
            self._look_at(epoch, awaited)
        return awaited is not None

    # -- answers -----------------------------------------------------------------------------------------------------

    def answered(self, result: Result) -> None:
        """A worker has answered."""
        flight = self._flights.get(result.task_id)
        if flight is None or flight.worker != result.worker:
            return  # of a worker that was replaced, or that lost the task to another
        del self._flights[result.task_id]
        self._answers += 1
        worker = result.worker
        view = self.workers[worker]
        view.outstanding -= 1
        view.since_s = self.now_s
        if self._has_begun_all:
            self._has_begun_all.clear()
        if self._binds and not self._bound:
            self._note_bonds(flight, result)
        if result.busy_ns:
            self._pace.note(result.busy_ns)
        notes = result.notes
        if notes is not None and has_state(notes):
            self.memory.last_notes[worker] = notes.outlasting() if result.kind is ResultKind.ENDED else notes
        if flight.trouble is not None:
            self._recovery.made(flight.trouble)
        if flight.suspect is not None:
            self._survived(flight.suspect)
        elif flight.is_call:
            if result.kind is ResultKind.FAILED and flight.task.indices is not self._told_of:
                self._told_of = flight.task.indices  # the other workers will say the same
                self._failed_call = result.payload
        else:
            self._answer(flight, result)
        if self._parked and worker in self._parked:
            self._replace_if_idle(worker)

    def _note_bonds(self, flight: Flight, result: Result) -> None:
        if result.bound:
            self._bound = True
        elif result.kind is ResultKind.DONE and not flight.is_call:
            self._unbound.add(result.worker)

    def _answer(self, flight: Flight, result: Result) -> None:
        """Take an answer, which may be of a part."""
        if flight.group is not None:
            joined = self._join(flight, flight.group, result)
            if joined is None:
                return
            result = joined
        self._settle(flight, result)

    def _settle(self, flight: Flight, result: Result) -> None:
        """Take an answer; its slot comes back unless a batch lies in it that somebody wants."""
        if not flight.wanted or result.kind is not ResultKind.DONE:
            self._slots.release(flight.task.slot)
        elif self._splitter is not None and type(result.payload) is Parcel:
            self._splitter.learn(flight.task.indices, result.payload)
        if not flight.wanted:
            return
        assert self.epoch is not None
        if flight.trouble is not None and flight.trouble.faults:
            result.notes = result.notes or Notes()
            result.notes.faults = [*flight.trouble.faults, *result.notes.faults]
        self.epoch.arrived(flight, result)

    def _join(self, flight: Flight, group: Group, result: Result) -> Result | None:
        """Take the answer of one part; returns what became of the batch when it was the last."""
        if not group.answered(result):
            return None
        if group.misfit and group.trouble is None and flight.wanted:
            assert self._splitter is not None
            self._splitter.forget(group.indices)
            flight.group = None
            flight.task = Task(0, group.indices, shared_seed=flight.task.shared_seed, draw=group.draw)
            assert self.epoch is not None
            self.epoch.in_flight[flight.ordinal] = flight
            self._give(flight, group.slot)
            return None
        return group.result(flight.worker, flight.task.id)

    # -- tasks that were taken back ----------------------------------------------------------------------------------

    def taken_back(self, worker: int, task_ids: list[int]) -> None:
        """Tasks that a worker had not begun were taken back, as was decided."""
        moving, self._moving = self._moving, None
        target = moving[1] if moving is not None and moving[0] == worker else None
        if target is not None:
            self._has_begun_all.add(worker)  # unless something is found that may move
        view = self.workers[worker]
        for task_id in task_ids:
            flight = self._flights[task_id]
            view.outstanding -= 1
            if not flight.whole.wanted and not flight.is_call:
                del self._flights[task_id]
                self._drop(flight)
                continue
            # Calls, probes and what tells a worker where to go on are meant for this worker and no other.
            alone = flight.is_call or flight.suspect is not None or flight.task.resume is not None
            if target is not None and not alone:
                flight.worker = target
                self._counters.relieved += 1
                self._has_begun_all.discard(worker)
            self._hand_over(flight)
        if worker in self._parked:
            self._replace_if_idle(worker)

    def leave_epoch(self) -> None:
        """Forget the epoch: what has not begun is taken back; what has is dropped when it arrives."""
        if self.epoch is None:
            return
        for unwanted in self.epoch.leave():
            self._slots.discard(unwanted)
        for flight in self._flights.values():
            flight.whole.wanted = flight.wanted = flight.is_call
        for waiting in self._parked.values():
            for flight in [flight for flight in waiting if not flight.is_call]:
                waiting.remove(flight)
                self.workers[flight.worker].outstanding -= 1
                del self._flights[flight.task.id]
                self._drop(flight)
        busy = {flight.worker for flight in self._flights.values() if not flight.is_call}
        for worker in busy:
            self.decisions.append((TAKE_BACK, worker, None))

    def _drop(self, flight: Flight) -> None:
        """Take back the slot of a task that will not be answered, with the last of its parts."""
        flight = flight.whole
        flight.wanted = False
        if flight.group is not None:
            flight.group.remaining -= 1
            if flight.group.remaining:
                return
        self._slots.release(flight.task.slot)

    def close(self) -> None:
        """Forget everything: the workers are gone."""
        flights = list(self._flights.values())
        self._flights.clear()
        for flight in flights:
            self._drop(flight)
        for left in self._leaving.values():
            for flight in left.waiting if left.begun is None else [left.begun, *left.waiting]:
                self._drop(flight)
        self._leaving.clear()
        self.decisions.clear()
        if self.epoch is not None:
            for unwanted in self.epoch.leave():
                self._slots.discard(unwanted)

    # -- workers that died, or are to go -----------------------------------------------------------------------------

    def died(self, worker: int, death: BaseException, unbegun: list[int]) -> None:
        """A worker has died; `unbegun` are the tasks that it had not begun."""
        death = self._stuck.pop(worker, death)
        waits = {*unbegun, *(flight.task.id for flight in self._parked.pop(worker, []))}
        held = sorted((flight for flight in self._flights.values() if flight.worker == worker), key=_turn)
        for flight in held:
            del self._flights[flight.task.id]
        begun = next((flight for flight in held if flight.task.id not in waits), None)
        waiting = [flight for flight in held if flight is not begun]
        if begun is not None and not self._recovery.is_ready(death):
            waiting, begun = held, None
        end = self._recovery.end_by(worker, death, begun, self._doubts(begun))
        replacement = _Replacement(death, begun, waiting)
        if end is not None:
            self._end(end, replacement)
            return
        self._counters.restarts += 1
        self._replace(worker, replacement)

    def grown(self, worker: int) -> None:
        """A worker has more memory than it may have: it ends what it has begun, and another takes its place."""
        if worker not in self._parked and worker not in self._leaving:
            self._parked[worker] = []
            self.decisions.append((TAKE_BACK, worker, None))

    def _replace_if_idle(self, worker: int) -> None:
        """Replace a worker that is to go, if it has done what it had begun. Nobody died: this is no restart."""
        if self.workers[worker].outstanding > len(self._parked[worker]):
            return
        waiting = self._parked.pop(worker)
        for flight in waiting:
            del self._flights[flight.task.id]
        self._counters.recycled += 1
        self._replace(worker, _Replacement(None, None, waiting))

    def _replace(self, worker: int, replacement: _Replacement) -> None:
        self._leaving[worker] = replacement
        self.decisions.append((START, worker))

    def started(self, worker: int) -> None:
        """Another worker was started in the place of one that is gone: it gets what that one had."""
        left, epoch, view = self._leaving.pop(worker), self.epoch, self.workers[worker]
        view.outstanding = 0
        view.since_s = self.now_s + _START_UP_S
        self._unbound.discard(worker)
        resume = None if epoch is None else epoch.resume_for(worker)
        if resume is not None:
            self._owed[worker] = resume
        if (resume is not None and resume.skip) or (epoch is not None and epoch.replays):
            view.since_s += self.now_s - self._begun_s  # it reads again what the other has read
        if left.death is not None:
            told = self._recovery.told_of_restart(left.death, worker, left.begun)
            self.unsaid.append((told, WorkerRestarted))
        if left.begun is not None:
            self._redo(left.begun, left.death)
        self._give_again(worker, left.waiting)
        if worker in self._owed and epoch is not None and not view.outstanding:
            epoch.owe(worker, self._owed.pop(worker))

    def not_started(self, worker: int, exc: Exception) -> None:
        """No other worker could be started: there is no going on."""
        left = self._leaving.pop(worker)
        if left.death is not None:
            exc.__cause__ = left.death
        self._end(self._recovery.told_of_budget(exc), left)

    def _end(self, last: BaseException, left: _Replacement) -> None:
        """Give up: there is no going on after this death."""
        killers: list[Any] = []
        for flight in left.waiting if left.begun is None else [left.begun, *left.waiting]:
            trouble = flight.whole.trouble
            killers += [] if trouble is None else trouble.faults
            self._drop(flight)
        if killers and self.epoch is not None and self.epoch.account is not None:
            result = Result(ResultKind.DIED, -1, -1, notes=Notes(faults=killers))
            self.epoch.account.enter(result, 0, self.epoch.number)
        self.fatal = last

    def _doubts(self, flight: Flight | None) -> Doubts:
        tasks = {id(other.whole): other.whole for other in self._flights.values()}
        for left in self._leaving.values():
            if left.begun is not None:
                tasks[id(left.begun.whole)] = left.begun.whole
        suspect = None if flight is None else flight.whole
        doubted = [task for task in tasks.values() if task.trouble is not None and task.trouble.unexplained]
        return Doubts(sum(task is not suspect for task in doubted), self._answers)

    def _redo(self, begun: Flight, death: BaseException | None) -> None:
        if not begun.whole.wanted:  # of an epoch that was left
            self._drop(begun)
        elif begun.is_call or begun.group is not None:
            self._give_again(begun.worker, [begun])
        else:
            assert death is not None
            self._act(begun.whole, self._recovery.redo(begun, death, self._doubts(begun)))

    def _survived(self, suspect: Flight) -> None:
        """A part of a task that kills was made without harm."""
        if not suspect.wanted:
            self._drop(suspect)
        else:
            self._act(suspect, self._recovery.survived(suspect, self._doubts(suspect)))

    def _act(self, flight: Flight, redone: Redone) -> None:
        if redone is None:
            self._give_again(flight.worker, [flight])
        elif isinstance(redone, Task):
            self._give(Flight(flight.ordinal, flight.worker, redone, suspect=flight), flight.task.slot)
        else:
            self._settle(flight, redone)

    def _give_again(self, worker: int, flights: list[Flight]) -> None:
        """Give a worker that is new what the one before it had."""
        for flight in flights:
            if flight.is_call:
                continue  # the dataset that the new worker was given has heard it already
            if not flight.whole.wanted:
                self._drop(flight)
            elif flight.group is not None:  # the batch is made as a whole
                self._answer(flight, Result(ResultKind.MISFIT, flight.worker, flight.task.id))
            else:
                if worker in self._owed:
                    flight.task.resume = self._owed.pop(worker)
                self._give(flight, flight.task.slot)


def _turn(flight: Flight) -> int:
    return flight.turn
