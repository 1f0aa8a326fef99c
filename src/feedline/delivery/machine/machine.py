"""The machine that assigns tasks, accepts answers, replaces workers and decides which batch comes next.

It never waits, reads no clock, and touches no process, socket or shared memory. Method calls report events to it: the
training loop asks for a batch (`ask`, `take`, `wait`); a worker answered, died, outgrew its memory limit, was started
or could not be; tasks were taken back; the time is `now_s`; a method must be called in all workers; the epoch was left.
It appends its responses to `decisions`, in order (see `decisions.py`). A driver performs all of them and reports the
result of each before it reports anything else. The same machine runs live, with an engine, and in a simulated world.

It has three layers, each built on the one before: `Tasks` knows which worker has which task and who owns each slot,
`Workers` replaces workers and handles the tasks they leave, and `Machine` runs an epoch with the training loop. Every
batch of the epoch is in flight, ready, done, or not requested yet; `Epoch.note`, which the driver calls last, records
it as delivered.
"""

from __future__ import annotations

import math

from feedline.abc.scheduler import WorkerView
from feedline.delivery.machine.decisions import LOOK_AT, TAKE_BACK
from feedline.delivery.machine.epoch import NOTHING, Epoch
from feedline.delivery.machine.flight import Flight
from feedline.delivery.machine.prefetch import RUN_AHEAD, window_size
from feedline.delivery.machine.recovery import Seen
from feedline.delivery.machine.workers import Workers
from feedline.errors import BadOption, EmptyBatch, WorkerTimeout
from feedline.system.failures import is_interrupt, without_frames
from feedline.types import Result, ResultKind

_NOT_READY = -1


class Machine(Workers):
    """Make decisions, without waiting or touching a worker. One thread at a time; constructed like `Workers`."""

    _window = 0
    """Batches that may be in flight."""
    _deadline_s: float | None = None
    """Deadline of the batch that the training loop waits for; other batches do not extend it."""
    _settled_s = -math.inf
    """Do not ask the scheduler for a worker to relieve before this time."""
    _late: Flight | None = None
    """The task of an unresponsive worker that is being inspected."""

    def begin(self, epoch: Epoch) -> None:
        """Begin an epoch; the previous one must have been left."""
        self.epoch, self.memory.passes = epoch, self.passes
        self._recovery.begin_epoch()
        epoch.open(len(self.active), self.memory)
        self.fill()

    def ask(self) -> None:
        """Handle a request of the training loop for the next batch.

        Raises:
            Exception: what a method call raised in a worker, or the scheduler after the last batch.
        """
        self.wait_anew()
        if self._failed_call is not None:
            failed, self._failed_call = self._failed_call, None
            raise failed
        epoch = self.epoch
        if epoch is not None and epoch.unraised is not None:
            failed, epoch.unraised = epoch.unraised, None
            raise failed

    def wait_anew(self) -> None:
        """Restart the timeout for the next wait."""
        self._deadline_s = None

    def take(self) -> int:
        """Return the number of the batch to deliver now; negative if it is not ready yet.

        Raises:
            StopIteration: the epoch is over.
            BadOption: the scheduler made an impossible choice.
            TooManyBadSamples: the budget of the error policy is spent.
        """
        epoch = self.epoch
        assert epoch is not None
        while True:
            ordinal = epoch.take()
            if ordinal is not None:
                result = epoch.ready[ordinal]
                kind = result.kind
                epoch.note_faults(ordinal, result)
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
                return _NOT_READY  # until unwanted tasks whose slots are needed are done
            if is_through and epoch.held is NOTHING:
                break
            raise self._refused(epoch, holds_back=is_through)
        self.leave_epoch()
        epoch.fault_budget.check(ended=True)
        raise StopIteration

    def _refused(self, epoch: Epoch, *, holds_back: bool) -> BadOption:
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

    def _pass_over(self, epoch: Epoch, ordinal: int) -> None:
        """Skip a batch that has no samples left, unless ranks would get out of step."""
        result = epoch.ready[ordinal]
        worker, notes = result.worker, result.notes
        if epoch.fault_budget.keeps_steps:
            worker = worker if worker not in self._absent else 0
            del epoch.ready[ordinal]
            try:
                treated = epoch.instead_of(ordinal)
            except EmptyBatch as exc:
                epoch.ready[ordinal] = Result(ResultKind.FAILED, -1, -1, exc)
            else:
                self._begin(epoch, ordinal, epoch.task(ordinal, treated.indices, worker, treated), worker)
            return
        warning = None if notes is None else epoch.stream_check.look_at(notes)
        if warning is not None:
            self.pending_warnings.append(warning)
        epoch.pop(ordinal)
        epoch.note(ordinal, worker, notes, result.read)
        epoch.progress.missing += 1
        epoch.ask_again(worker)
        self.fill()

    def handed_out(self, worker: int) -> None:
        """Request more after a worker's batch was taken. The next `ask` raises what the scheduler raises here."""
        epoch = self.epoch
        assert epoch is not None
        epoch.ask_again(worker)
        try:
            self.fill()
        except Exception as exc:
            if is_interrupt(exc):
                raise
            epoch.unraised = without_frames(exc)

    @property
    def are_short(self) -> bool:
        """True if tasks are so short that several are assigned at once."""
        return self.epoch is not None and self._window > self.epoch.limits.window

    def fill(self) -> None:
        """Assign tasks until the window is full. A deep window is refilled only after a quarter of it is used up."""
        epoch = self.epoch
        assert epoch is not None
        limits, in_flight = epoch.limits, epoch.sent - epoch.done
        if not epoch.deepens:
            self._window = limits.window
        elif self._window > limits.window and in_flight > self._window * 3 // 4:
            return
        elif self._window > limits.window or not epoch.sent & 15:
            self._window = window_size(limits, self._pace.typical_s(), self._slots.fit_messages())
        left = 0
        while epoch.sent - epoch.done < self._window:
            left = left or self._slots.left()
            must = not limits.waits_for_slots or (epoch.stays and epoch.sent < len(self.active))
            if not left and not must:
                self._lacks_slots = True
                if self._flights:
                    return
            if not self._send_one(epoch):
                break
            left = max(0, left - 1)
        self._lacks_slots = False

    @property
    def holds_back(self) -> bool:
        """True if the scheduler holds back a batch that fits in the window, until a worker has answered."""
        return self.epoch is not None and self.epoch.held is not NOTHING

    def _send_one(self, epoch: Epoch) -> bool:
        """Assign the next task; False if there is none or no worker may have it."""
        indices = epoch.next()
        if indices is NOTHING:
            return False
        worker = epoch.assign(indices, self.active)
        if worker is None:
            return False
        ordinal = epoch.sent
        self._begin(epoch, ordinal, epoch.task(ordinal, indices, worker), worker)
        epoch.sent = ordinal + 1
        return True

    def leave_epoch(self) -> None:
        """Leave the epoch. Workers finish the tasks that they were given; the results are dropped when they arrive.

        So every epoch that began reaches every worker, and a dataset that counts its epochs or its samples sees what
        the program did, not how fast it was. Only where nobody can see it are tasks that have not begun taken back.
        """
        if self.epoch is None:
            return
        for unwanted in self.epoch.leave():
            self._slots.discard(unwanted)
        for flight in self._flights.values():
            flight.whole.wanted = flight.wanted = flight.is_call
        if self.epoch.limits.takes_back:
            for worker in {flight.worker for flight in self._flights.values() if not flight.wanted}:
                self.decisions.append((TAKE_BACK, worker, None))

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self) -> tuple[float | None, int | None]:
        """Return how long to wait, and for which worker; None means without limit, and for any worker.

        If the next batch is late, this finds work for other workers meanwhile: perform `decisions`, then call it again.
        """
        epoch = self.epoch
        assert epoch is not None
        now_s, limits, scheduler = self.now_s, epoch.limits, epoch.scheduler
        worker: int | None = None
        pause_s: float | None = None
        due = epoch.in_flight.get(epoch.expected) if scheduler.in_order and epoch.awaits_one else None
        if due is not None:
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
        """Find work for idle workers; return after how many seconds to check again, None if there is no need."""
        scheduler = epoch.scheduler
        typical_s = self._pace.typical_s()
        if self._idle and self._moves and epoch.can_move and self.now_s >= self._settled_s:
            views = self._views_for_relief(epoch)
            has_idle = any(not view.outstanding for view in views)
            move = scheduler.relieve(views, self.now_s, typical_s) if has_idle else None
            if move is None:  # relieve() scans all workers, and lateness develops slowly
                self._settled_s = self.now_s + typical_s / 4
            else:
                self._check_move(epoch, *move)
                if move[0] not in self._has_begun_all and self._may_move_from(move[0]):
                    self._moving = move
                    self.decisions.append((TAKE_BACK, move[0], 1))
                    return scheduler.grace_s(typical_s)
        while self._idle and epoch.limits.runs_ahead:
            is_full = epoch.sent - epoch.done >= epoch.limits.window * RUN_AHEAD
            if is_full or not (self._slots.left() or not self._flights):
                return None
            if not self._send_one(epoch):
                break
            self._counters.run_ahead += 1
        return scheduler.grace_s(typical_s)

    def _views_for_relief(self, epoch: Epoch) -> list[WorkerView]:
        """Return the workers between which work may move.

        A worker that lost all its tasks unanswered gets no tasks of others until it has answered. So a task visits each
        stopped worker at most once, and the timeout replaces its last holder. Without such a timeout, the worker that
        was passed over for longest is tried again.
        """
        unresponsive, begun = self._unresponsive, self._has_begun_all
        if not unresponsive and not begun:
            return self.active
        idle = [view.id for view in self.active if not view.outstanding]
        is_replaced = epoch.limits.kills_stuck and epoch.limits.timeout_s > 0
        if not is_replaced and unresponsive.keys() >= set(idle):
            del unresponsive[next(worker for worker in unresponsive if worker in idle)]
        return [view for view in self.active if view.id not in (begun if view.outstanding else unresponsive)]

    def _check_move(self, epoch: Epoch, source: int, target: int) -> None:
        """Reject a move from a worker without work or to a busy worker: such moves would never end."""
        workers = self.active
        exist = 0 <= source < len(workers) and 0 <= target < len(workers)
        if not exist or not workers[source].outstanding or workers[target].outstanding:
            raise BadOption(
                f"{epoch.scheduler!r} gives work of worker {source} to worker {target}: `relieve` must choose among "
                f"workers 0 to {len(workers) - 1}. The first must have work, and the second must have nothing to do."
            )

    def judge_lateness(self) -> None:
        """Check whether the batch that the training loop waits for has missed its deadline; if so, inspect its worker.

        Raises:
            WorkerTimeout: the batch is late, and no worker has a task.
        """
        epoch = self.epoch
        if self._deadline_s is None or self.now_s < self._deadline_s or epoch is None or epoch.take() is not None:
            return
        if self.decisions:
            return  # already being handled, such as by replacing a worker that died
        due = epoch.in_flight.get(epoch.expected) or next(iter(epoch.in_flight.values()), None)
        self._look_at(epoch, due)

    def _look_at(self, epoch: Epoch, due: Flight | None) -> None:
        limits = epoch.limits
        late = self._oldest_of(None if due is None else due.worker)  # may belong to an epoch that was left
        if late is None:
            raise WorkerTimeout(f"DataLoader timed out after {limits.timeout_s} seconds.")
        since_s = self.workers[late.worker].since_s
        is_elsewhere = late.stays or not late.whole.wanted  # busy with tasks before the one waited for
        if (limits.kills_stuck or is_elsewhere) and self.now_s - since_s < limits.timeout_s:
            self._deadline_s = since_s + limits.timeout_s  # the worker is new, or has answered since and is merely slow
            return
        self._late = late
        self._deadline_s = self.now_s + limits.timeout_s
        self.decisions.append((LOOK_AT, late.worker, limits.kills_stuck and self._recovery.may_restart))

    def seen(self, worker: int, seen: Seen) -> None:
        """Handle the inspection of an unresponsive worker; if it was killed, its death is reported next.

        Raises:
            WorkerTimeout: it was not killed.
        """
        late, self._late = self._late, None
        assert late is not None
        assert self.epoch is not None
        elapsed_s = self.now_s - self.workers[worker].since_s
        error = self._recovery.stuck_error(late, self.epoch.limits, elapsed_s, seen)
        if not seen.is_killed:
            raise error
        self._stuck[worker] = error

    def was_alive(self, worker: int, alive_s: float) -> bool:
        """Record when an unresponsive worker last showed a sign of life; True if that excuses the delay."""
        view, alive_s = self.workers[worker], min(alive_s, self.now_s)
        if alive_s <= view.since_s:
            return False
        assert self.epoch is not None
        view.since_s, self._late = alive_s, None
        self._deadline_s = alive_s + self.epoch.limits.timeout_s
        return True

    def await_openings(self) -> bool:
        """True while a task is in flight whose answer contains the state in which its worker began the epoch."""
        epoch = self.epoch
        assert epoch is not None
        awaited = epoch.unopened()
        timeout_s = epoch.limits.timeout_s
        if awaited is None:
            epoch.assume_openings()
            self._deadline_s = None  # nothing waits for a batch
        elif timeout_s and self._deadline_s is None:
            self._deadline_s = self.now_s + timeout_s
        elif self._deadline_s is not None and self.now_s >= self._deadline_s:
            self._look_at(epoch, awaited)
        return awaited is not None
