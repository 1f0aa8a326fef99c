"""The machine that assigns tasks, accepts answers, replaces workers and decides which batch comes next.

It never waits, reads no clock, and touches no process, socket or shared memory. Method calls report events to it, such
as the answer of a worker; the time is `flights.now_s`. It appends its responses to `decisions`, in order (see
`flights.py`). A driver performs all of them and reports the result of each before it reports anything else. The same
machine runs live, with an engine, and in a simulated world.

This file is the way of a batch that nothing happens to: `ask`, `take`, `wait`, `answered`, `handed_out`, `fill`. Every
batch of the epoch is in flight, ready, done, or not requested yet; `Epoch.note`, which the driver calls last, records
it as delivered. What happens to one batch in a million is in the parts: `crew` has workers that die, grow, or are
added, `lateness` has batches that are late. All of them share `flights`: who has which task and which slot.
"""

from __future__ import annotations

from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.crew import Crew
from feedline.delivery.machine.epoch import Epoch, Limits
from feedline.delivery.machine.flights import TAKE_BACK, Flights, SlotSource
from feedline.delivery.machine.lateness import Lateness
from feedline.delivery.machine.recovery import Recovery
from feedline.system.failures import is_interrupt, without_frames
from feedline.types import Call, Result, ResultKind

_NOT_READY = -1

DEEP = 16
_SHORT_S = 1e-3
"""While batches come in messages and take less than `_SHORT_S` to make, the window is up to `DEEP` times as large.

A window of four such batches is used up before the next worker wakes, so every process sleeps and is woken once per
batch, which costs more than the batch. With 2 workers on 2 cores and batches of 3 KB made in 0.3 ms, as in the
benchmark w1_tiny, 30 batches per worker, refilled by a quarter, give 4 % more batches per second than 16 refilled by
half. Deeper windows, and smaller refills, gave no more: a worker that is ahead of the others, because they share cores,
must not run out of work before the refill. The time limit is a guess.
"""


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
        self.window = 0
        """Batches that may be in flight."""
        self.crew = Crew(self.flights, recovery, worker_count)
        self.lateness = Lateness(self.flights, self.crew, recovery)
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
                    epoch.pop(ordinal)
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
            raise epoch.refused(holds_back=is_through)
        epoch.complete()
        self.leave_epoch()
        epoch.fault_budget.check(ended=True)
        raise StopIteration

    def _pass_over(self, epoch: Epoch, ordinal: int) -> None:
        other = epoch.pass_over(ordinal)
        if other is None:
            self.fill()
        else:
            other.worker = 0 if other.worker in self.flights.absent else other.worker
            self.flights.give(other, self._slots.acquire(other.worker))

    # -- the training loop waits --------------------------------------------------------------------------------------

    def wait(self) -> tuple[float | None, int | None]:
        """Return how long to wait, and for which worker; None means without limit, and for any worker.

        If the next batch is late, this finds work for idle workers: perform `decisions`, then call it again.
        """
        flights, epoch, lateness = self.flights, self.flights.epoch, self.lateness
        assert epoch is not None
        worker: int | None = None
        pause_s: float | None = None
        due = None
        if epoch.awaits_one and epoch.scheduler.in_order:
            due = epoch.in_flight.get(epoch.numbers.delivered)
        if due is not None:
            grace_s = flights.pace.grace_s()
            pause_s = flights.workers[due.worker].since_s + grace_s - flights.now_s
            if pause_s > 0:
                worker = due.worker
            elif all(view.outstanding for view in flights.active):
                pause_s = grace_s
            else:
                pause_s = lateness.help_idle_workers(epoch)
        if epoch.limits.timeout_s:
            if lateness.deadline_s is None:
                lateness.deadline_s = flights.now_s + epoch.limits.timeout_s
            left_s = max(0.0, lateness.deadline_s - flights.now_s)
            pause_s = left_s if pause_s is None else min(pause_s, left_s)
        return pause_s, worker

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
        """Assign tasks until the window is full. A deep window is refilled only after a quarter of it is used up.

        The window is `depth` batches per worker, as in torch. It is exceeded only where nobody can see which batches a
        worker has made: workers that end with the epoch, `seed=`, `in_order=False`, or a dataset of plain arrays; and
        far ahead only in an order known in advance, as a user's own sampler may depend on what the training loop does.
        """
        flights, slots, epoch = self.flights, self._slots, self.flights.epoch
        assert epoch is not None
        limits, in_flight = epoch.limits, epoch.sent - epoch.done
        if not epoch.deepens:
            self.window = limits.window
        elif self.window > limits.window and in_flight > self.window * 3 // 4:
            return
        elif self.window > limits.window or not epoch.sent & 15:
            self.window = self._window_size(limits)
        left = 0
        while epoch.sent - epoch.done < self.window:
            left = left or slots.left(flights.count)
            must = not limits.waits_for_slots or (epoch.stays and epoch.sent < len(flights.active))
            if not left and not must:
                flights.lacks_slots = True
                if flights.is_busy:
                    return
            if not flights.give_next(epoch):
                break
            left -= left > 0
        flights.lacks_slots = False

    def _window_size(self, limits: Limits) -> int:
        """Return how many batches may be in flight, if the user set no depth."""
        is_brisk = self.flights.pace.typical_s() < _SHORT_S
        return limits.window * (max(1, min(DEEP, self._slots.fit_messages() // limits.depth)) if is_brisk else 1)

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
            flights.pace.note(result.busy_ns)
        if flight.suspect is not None:
            crew.survived(flight.suspect)
        elif flight.is_call:
            if result.kind is ResultKind.FAILED and flight.task.indices is not self._reported_call:
                self._reported_call = flight.task.indices  # the other workers will report the same
                self._failed_call = result.payload
        else:
            if result.notes is not None and flight.wanted and flights.epoch is not None:
                crew.pending_warnings.extend(flights.epoch.stream_check.look_at(result.notes))
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
