"""The machine that assigns tasks, accepts answers, replaces workers and decides which batch comes next.

It never waits, reads no clock, and touches no process, socket or shared memory. Method calls report events to it, such
as the answer of a worker; the time is `flights.now_s`. It appends its responses to `decisions`, in order (see
`decisions.py`). A driver performs all of them and reports the result of each before it reports anything else. The same
machine runs live, with an engine, and in a simulated world.

This file is the way of a batch that nothing happens to: `ask`, `take`, `handed_out`, `fill`, `answered`. Every batch of
the epoch is in flight, ready, done, or not requested yet; `Kind.note`, which the driver calls last, records it as
delivered. What happens to one batch in a million is in the parts: `crew` has workers that die, grow, or are added,
`lateness` has batches that are late. All of them share `flights`: who has which task and which slot.
"""

from __future__ import annotations

from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.crew import Crew
from feedline.delivery.machine.decisions import TAKE_BACK
from feedline.delivery.machine.epoch import Epoch
from feedline.delivery.machine.flights import Flights, SlotSource
from feedline.delivery.machine.lateness import Lateness
from feedline.delivery.machine.prefetch import Pace, window_size
from feedline.delivery.machine.recovery import Recovery
from feedline.errors import BadOption, EmptyBatch
from feedline.system.failures import is_interrupt, without_frames
from feedline.types import Call, Result, ResultKind

_NOT_READY = -1


class Machine:
    """Make decisions, without waiting or touching a worker. One thread at a time.

    Args:
        worker_count: number of workers.
        slots: where batches are written.
        recovery: decides what to do about deaths.
        counters: records what happened.
        now_s: the current time.
        most: maximum number of workers; None if the number is fixed.
    """

    def __init__(
        self,
        worker_count: int,
        slots: SlotSource,
        recovery: Recovery,
        counters: Counters,
        *,
        now_s: float = 0.0,
        most: int | None = None,
    ) -> None:
        self.flights = Flights(worker_count, slots, counters, now_s=now_s, most=most)
        self.decisions = self.flights.decisions
        self.pace = Pace()
        self.window = 0
        """Batches that may be in flight."""
        self.crew = Crew(self.flights, recovery, worker_count)
        self.lateness = Lateness(self.flights, self.crew, recovery, self.pace)
        self._slots = slots
        self._failed_call: BaseException | None = None
        """What a call raised in a worker; the next `ask` raises it."""
        self._reported_call: Call | None = None

    def begin(self, epoch: Epoch) -> None:
        """Begin an epoch; the previous one must have been left."""
        flights = self.flights
        flights.epochs += flights.epoch is not None
        flights.epoch = epoch
        self.crew.begin_epoch()
        epoch.open(len(flights.active))
        positions = epoch.progress.positions.items()
        flights.owed = {worker: at for worker, at in positions if epoch.restores or worker in flights.owed}
        self.fill()

    # -- the training loop asks for a batch --------------------------------------------------------------------------

    def ask(self) -> None:
        """Handle a request of the training loop for the next batch.

        Raises:
            Exception: what a method call raised in a worker, or the scheduler after the last batch.
        """
        self.lateness.deadline_s = None
        if self._failed_call is not None:
            failed, self._failed_call = self._failed_call, None
            raise failed
        epoch = self.flights.epoch
        if epoch is not None and epoch.unraised is not None:
            failed, epoch.unraised = epoch.unraised, None
            raise failed

    def take(self) -> int:
        """Return the number of the batch to deliver now; negative if it is not ready yet.

        Raises:
            StopIteration: the epoch is over.
            BadOption: the scheduler made an impossible choice.
            TooManyBadSamples: the budget of the error policy is spent.
        """
        epoch = self.flights.epoch
        assert epoch is not None
        while True:
            ordinal = epoch.due()
            if ordinal is not None:
                result = epoch.ready[ordinal]
                kind = result.kind
                if epoch.guards or result.notes is not None:
                    epoch.note_faults(result)
                if kind is ResultKind.DONE or kind is ResultKind.FAILED:
                    return ordinal
                del result
                if kind is ResultKind.ENDED:
                    epoch.kind.pop(epoch, ordinal)
                else:
                    self._pass_over(epoch, ordinal)
                continue
            if epoch.is_over:
                break
            if epoch.in_flight:
                return _NOT_READY
            is_through, before = epoch.sent == epoch.done, epoch.sent
            if is_through or not self.flights.is_busy:
                self.fill()
            if epoch.sent > before:
                continue
            if is_through and epoch.exhausted:
                break
            if self.flights.is_busy:
                return _NOT_READY  # until unwanted tasks whose slots are needed are done
            raise _refused(epoch, holds_back=is_through)
        epoch.is_complete = True
        self.leave_epoch()
        epoch.fault_budget.check(ended=True)
        raise StopIteration

    def _pass_over(self, epoch: Epoch, ordinal: int) -> None:
        """Pass over a batch that has no samples left, unless ranks would get out of step."""
        result = epoch.ready[ordinal]
        worker, flight = result.worker, result.flight
        if epoch.fault_budget.keeps_steps:
            worker = worker if worker not in self.flights.absent else 0
            del epoch.ready[ordinal]
            try:
                treated = epoch.fault_budget.instead_of(flight.treated, batched=epoch.kind.batched)
            except EmptyBatch as exc:
                epoch.ready[ordinal] = Result(ResultKind.FAILED, -1, -1, exc)
            else:
                other = epoch.in_flight[ordinal] = epoch.kind.flight(epoch, ordinal, treated.indices, worker, treated)
                self.flights.give(other, self._slots.acquire(worker))
            return
        epoch.kind.pop(epoch, ordinal)
        epoch.kind.note(epoch, ordinal, worker, result.position)
        epoch.progress.missing += 1
        self.fill()

    # -- tasks are assigned ------------------------------------------------------------------------------------------

    def handed_out(self) -> None:
        """Request more after a batch was taken. The next `ask` raises what the scheduler raises here."""
        try:
            self.fill()
        except Exception as exc:
            if is_interrupt(exc):
                raise
            assert self.flights.epoch is not None
            self.flights.epoch.unraised = without_frames(exc)

    def fill(self) -> None:
        """Assign tasks until the window is full. A deep window is refilled only after a quarter of it is used up."""
        flights, slots, epoch = self.flights, self._slots, self.flights.epoch
        assert epoch is not None
        limits, in_flight = epoch.limits, epoch.sent - epoch.done
        if not epoch.deepens:
            self.window = limits.window
        elif self.window > limits.window and in_flight > self.window * 3 // 4:
            return
        elif self.window > limits.window or not epoch.sent & 15:
            self.window = window_size(limits, self.pace.typical_s(), slots.fit_messages())
        left = 0
        while epoch.sent - epoch.done < self.window:
            left = left or slots.left(flights.count)
            must = not limits.waits_for_slots or (epoch.kind.stays and epoch.sent < len(flights.active))
            if not left and not must:
                flights.lacks_slots = True
                if flights.is_busy:
                    return
            if not flights.give_next(epoch):
                break
            left -= left > 0
        flights.lacks_slots = False

    @property
    def are_short(self) -> bool:
        """True if tasks are so short that several are assigned at once."""
        return self.flights.epoch is not None and self.window > self.flights.epoch.limits.window

    # -- workers answer ----------------------------------------------------------------------------------------------

    def answered(self, result: Result) -> None:
        """Handle the answer of a worker."""
        flights, crew, worker = self.flights, self.crew, result.worker
        flight = flights.of[worker].pop(result.task_id, None)
        if flight is None:
            return  # from a worker that was replaced, or that lost the task to another
        view = flights.workers[worker]
        view.outstanding -= 1
        view.since_s = flights.now_s
        if crew.silent:
            crew.silent.discard(worker)
        if flights.drained:
            flights.drained.pop(worker, None)
        if result.busy_ns:
            self.pace.note(result.busy_ns)
        if flight.suspect is not None:
            crew.survived(flight.suspect)
        elif flight.is_call:
            if result.kind is ResultKind.FAILED and flight.task.indices is not self._reported_call:
                self._reported_call = flight.task.indices  # the other workers will report the same
                self._failed_call = result.payload
        else:
            if result.notes is not None and flight.wanted and flights.epoch is not None:
                crew.pending_warnings.extend(flights.epoch.kind.stream_check.look_at(result.notes))
            flights.accept(flight, result)
        if worker in flights.parked or (not view.outstanding and worker >= len(flights.active)):
            crew.end_if_idle(worker)

    # -- the epoch ends ----------------------------------------------------------------------------------------------

    def leave_epoch(self) -> None:
        """Leave the epoch. Workers finish the tasks that they were given; the results are dropped when they arrive.

        So every epoch that began reaches every worker, and a dataset that counts its epochs or its samples sees what
        the program did, not how fast it was. Only where nobody can see it are tasks that have not begun taken back.
        """
        flights, epoch = self.flights, self.flights.epoch
        if epoch is None:
            return
        for unwanted in epoch.leave():
            self._slots.discard(unwanted)
        for flight in flights:
            flight.requested.wanted = flight.wanted = flight.is_call
        if epoch.limits.takes_back:
            for worker in {flight.worker for flight in flights if not flight.wanted}:
                self.decisions.append((TAKE_BACK, worker, None))

    def close(self) -> None:
        """Forget everything: the workers are gone."""
        for flight in self.flights:
            self.flights.drop(flight)
        for tasks in self.flights.of:
            tasks.clear()
        self.flights.parked.clear()
        self.decisions.clear()
        if self.flights.epoch is not None:
            for unwanted in self.flights.epoch.leave():
                self._slots.discard(unwanted)


def _refused(epoch: Epoch, *, holds_back: bool) -> BadOption:
    """Return the error for a scheduler that would make everything wait forever."""
    if holds_back:
        return BadOption(
            f"{epoch.scheduler!r} holds back batch {epoch.sent} although every worker is idle: "
            "`assign` must choose a worker when none has anything to do."
        )
    return BadOption(
        f"{epoch.scheduler!r} delivers none of the finished batches {sorted(epoch.ready)[:8]} although "
        "nothing else is under way: `take` must choose one of them."
    )
