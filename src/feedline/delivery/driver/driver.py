"""The driver: performs the machine's decisions with an engine, and waits for events.

A driver outlives an epoch when workers are persistent. Everything that blocks, starts, kills or allocates is here and
in the engine; the machine decides what to do.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from feedline.abc.engine import Engine
from feedline.abc.source import Acknowledged
from feedline.delivery.driver.acknowledgements import Acknowledgements
from feedline.delivery.driver.caller_lock import CallerLock
from feedline.delivery.driver.memory_watch import MemoryWatch
from feedline.delivery.driver.slots import Slots
from feedline.delivery.machine.epoch import NOTHING, Epoch
from feedline.delivery.machine.flights import GIVE, LOOK_AT, RETIRE, START, TAKE_BACK
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.recovery import Seen
from feedline.errors import WorkerWarning, warn_user
from feedline.randomness import scope
from feedline.randomness.scope import TRANSFORM
from feedline.system import interrupts
from feedline.system.failures import is_interrupt
from feedline.types import Call, Result, ResultKind, SlotBatch, Task

_LOOK_UP_S = 0.05
"""How often to interrupt a wait for workers to check whether it should end. Nothing else depends on it."""

_TOGETHER = 8
"""Maximum number of tasks per message: a quarter of the deepest window. Tasks in larger messages could not be taken
back one by one."""

_LONG_S = 0.01
"""A wait of at least this length gets its own row; see `feedline.insight.observer`."""

RowParts = tuple[tuple[int, ...], tuple[int, ...]]
"""What is known about a batch before it is delivered: see `Observer.write`."""

Prepare = Callable[[Any], object]
"""Final processing of a batch in the training process, such as pinning."""


class Driver:
    """Workers, and the machine that decides for them. Used by one thread at a time.

    Args:
        engine: the workers.
        machine: makes the decisions.
        slots: memory of the batches.
        watch: watches the workers' memory.
        prepare: final processing of a batch.
        rest: gives back memory when no epoch is under way.
        dataset: notified which of its samples were consumed, if it supports that.
        clock: returns the time; `time.monotonic` if None.
    """

    def __init__(
        self,
        engine: Engine,
        machine: Machine,
        slots: Slots,
        *,
        watch: MemoryWatch | None = None,
        prepare: Prepare | None = None,
        rest: Callable[[], None] | None = None,
        dataset: object = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.engine = engine
        # Even if the driver is dropped before its first use, no worker is left behind.
        self._last = weakref.finalize(self, interrupts.see_through, engine.close)
        self.machine = machine
        self._flights = machine.flights
        self.counters = slots.counters
        self._observer = slots.counters.observer
        self._slots = slots
        self._watch = watch or MemoryWatch(engine)
        self._prepare = prepare
        self._rest = rest
        self.acknowledgements = Acknowledgements(dataset) if isinstance(dataset, Acknowledged) else None
        self.pid = os.getpid()
        self.caller_lock = CallerLock()
        """Protects the bookkeeping: held by the thread that waits for a batch, or that calls a method in the workers.
        """
        self.closed = False
        self._clock = clock or time.monotonic
        self._asked_s = 0.0
        self.rows: list[RowParts] | None = None
        """Gets what is known about each batch, if another object hands batches to the training loop and writes rows."""
        self.leaving = False
        """True once the workers should end. A thread that waits for them at that moment stops waiting."""

    @property
    def epoch(self) -> Epoch:
        """The current epoch, or the last one."""
        assert self._flights.epoch is not None
        return self._flights.epoch

    def begin_epoch(self, epoch: Epoch) -> None:
        """Begin an epoch."""
        self._flights.now_s = self._clock()
        self.machine.begin(epoch)
        self._perform()

    def leave_epoch(self) -> None:
        """Leave the epoch; see `Machine.leave_epoch`."""
        if not self.closed:
            self.machine.leave_epoch()
            self._perform()

    def broadcast(self, call: Call) -> None:
        """Call a method of the dataset in every worker, after the tasks already assigned to it."""
        self._flights.now_s = self._clock()
        self._flights.call(call)
        self._perform()
        self.machine.crew.check_call()

    # -- batches -----------------------------------------------------------------------------------------------------

    def next(self) -> Any:
        """Return the next batch; as the very last step, record it as delivered.

        Raises:
            StopIteration: there is none, or the wait was cancelled.
        """
        machine, epoch = self.machine, self._flights.epoch
        assert epoch is not None
        if self.acknowledgements is not None:
            self.acknowledgements.acknowledge()
        self._flights.now_s = self._asked_s = self._clock()
        machine.ask()
        if epoch.held is not NOTHING:
            self._collect(0.0, None)
            self._give_held()
        while True:
            if machine.crew.pending_warnings:
                self._warn_pending()
            ordinal = machine.take()
            if ordinal >= 0:
                return self._hand_out(epoch, ordinal)
            if not machine.decisions:
                pause_s, worker = machine.wait()
                if not machine.decisions:
                    self._collect(pause_s, worker)
                    if machine.crew.fatal is not None:
                        self._give_up()
                    if machine.lateness.deadline_s is not None:
                        machine.lateness.judge()
            if machine.decisions:
                self._perform()
            if epoch.held is not NOTHING:
                self._give_held()

    def _give_held(self) -> None:
        """Assign batches that were held back, if the scheduler allows it now that workers have answered."""
        self._perform()
        self.machine.fill()
        self._perform()

    def _hand_out(self, epoch: Epoch, ordinal: int) -> Any:
        machine, now_s = self.machine, self._flights.now_s
        result = epoch.pop(ordinal)
        worker, notes, position = result.worker, result.notes, result.position
        observer = self._observer
        is_seen = observer.got or now_s - self._asked_s > _LONG_S
        row_parts = self._row_parts_of(epoch, ordinal, result) if is_seen else None
        try:
            try:
                batch = self._unpack(result)
            except BaseException:
                self._slots.discard(result)  # if it cannot be unpacked
                raise
            finally:
                del result  # avoid a reference cycle: its exception refers to this frame
                machine.handed_out()
                if machine.decisions:
                    self._perform()
        except BaseException as exc:
            if not is_interrupt(exc):  # else the state still says that it was not delivered
                epoch.note(ordinal, worker, position)
                epoch.progress.missing += 1
            raise
        if notes is not None and self.acknowledgements is not None:
            self.acknowledgements.hold(notes.receipts)
        if row_parts is not None:
            self._write(row_parts)
        else:
            observer.last_s = delivered_s = self._clock()
            observer.waited_s += delivered_s - self._asked_s
            if self.counters.batches >= observer.due:
                observer.got = int(delivered_s * 1e9)
        epoch.note(ordinal, worker, position)
        return batch

    def _row_parts_of(self, epoch: Epoch, ordinal: int, result: Result) -> RowParts | None:
        """Return what is known about a batch before it is delivered; None if the result is not a batch."""
        flight, slot_batch = result.flight, result.payload
        if flight is None or result.kind is not ResultKind.DONE or not self._observer.is_under_way:
            return None
        task_notes, worker = result.task_notes, result.worker
        transform = 0
        if task_notes is not None:
            transform = task_notes.stages.pop(TRANSFORM, 0)
            self._observer.add_notes(task_notes, worker)
        given, came, asked_s = int(flight.given_s * 1e9), int(flight.came_s * 1e9), self._asked_s
        (began, fetch, collate, computed, queued), busy = result.task_times, result.busy_ns
        if not began:  # the engine does not report it
            began, fetch = came - busy, busy
        size = slot_batch.used if type(slot_batch) is SlotBatch else 0
        made = (began, fetch, transform, collate, busy - fetch - collate, computed, queued, began + busy)
        row_parts = (ordinal, worker, epoch.sample_count(flight), size, given, *made, came)
        ready = epoch.ready
        behind = len(ready)
        if behind and self._flights.now_s != asked_s:  # some of them may have arrived after the request
            asked = int(asked_s * 1e9)
            # Batches that have not arrived may have been ready too: that is determined later, from when each was
            # finished.
            behind = sum(0 < other.task_times[0] + other.busy_ns <= asked for other in ready.values())
        return row_parts, (behind, 0, int(flight.is_held_up), int(result.first))

    def _write(self, row_parts: RowParts) -> None:
        """Write the row of a batch that is about to be delivered, or leave that to the object that hands it on."""
        if self.rows is not None:
            self.rows.append(row_parts)
        else:
            before, more = row_parts
            asked = int(self._asked_s * 1e9)
            self._observer.write(before, asked, time.monotonic_ns(), more, self.counters.batches)

    def _unpack(self, result: Result) -> object:
        """Turn an answer into the batch, or raise its exception."""
        if result.kind is ResultKind.FAILED:
            self.counters.failures += 1
            try:
                raise result.payload
            finally:
                del result  # avoid a reference cycle: the traceback refers to this frame
        self.counters.batches += 1
        batch = result.payload
        if type(batch) is SlotBatch:
            batch = self._slots.unpack(batch)
        return batch if self._prepare is None else self._prepare(batch)

    def end(self) -> None:
        """Record the end of the epoch, unless another object hands batches on and does so."""
        if self.rows is None:
            self._observer.end(self.counters.batches, int(self._asked_s * 1e9))

    def poll(self) -> None:
        """Report to the machine what has happened, without waiting; what follows from it is left to `next`."""
        if not self.leaving:
            self._collect(0.0, None)

    # -- what happens, and what is done about it ---------------------------------------------------------------------

    def _collect(self, pause_s: float | None, worker: int | None) -> None:
        """Wait for events and report them to the machine. May return early without any.

        Raises:
            StopIteration: the wait was cancelled.
        """
        machine, watch = self.machine, self._watch
        pause_s = _LOOK_UP_S if pause_s is None else min(pause_s, _LOOK_UP_S)
        if scope.ranges is None:
            results = self.engine.collect(pause_s, worker)
        else:
            with scope.ranges("feedline: wait for workers"):
                results = self.engine.collect(pause_s, worker)
        now_s = self._flights.now_s = self._clock()
        if not results:
            if self.leaving:
                raise StopIteration
            return
        for result in results:
            if result.kind is ResultKind.DIED:
                death, result.payload = result.payload, None  # avoid a reference cycle with this frame
                machine.crew.died(result.worker, death, self._revoke(result.worker, None))
                del death
                continue
            if result.worker not in watch.records:
                result.first = True
                trouble = watch.begin(result.worker)
                if trouble is not None:
                    machine.crew.pending_warnings.append((trouble, WorkerWarning))
            machine.answered(result)
        if len(results) > 1:
            self._slots.unpack_ahead(results)
        if now_s >= watch.next_s:
            for found in watch.look(now_s):
                if isinstance(found, int):
                    machine.crew.grown(found)
                else:
                    machine.crew.pending_warnings.append((found, WorkerWarning))

    def _perform(self) -> None:
        """Perform the pending decisions, and report the results to the machine."""
        machine = self.machine
        decisions = machine.decisions
        while decisions:
            decision = decisions.popleft()
            what, worker = decision[0], decision[1]
            if what is GIVE:
                if decisions and machine.are_short:
                    decisions.appendleft(decision)
                    self._give_together()
                else:
                    self._give(worker, decision[2])
            elif what is TAKE_BACK:
                count = None if decision[2] is None else 1
                machine.crew.taken_back(worker, decision[2], self._revoke(worker, count))
            elif what is START:
                self._start_another(worker)
            elif what is RETIRE:
                self._watch.forget(worker)
                self.engine.retire(worker)
            else:
                assert what is LOOK_AT
                self._look_at(worker, kills=decision[2])
        if machine.crew.fatal is not None:
            self._give_up()

    def _give(self, worker: int, task: Task) -> None:
        try:
            self.engine.submit(worker, task)
        except Exception as exc:  # indices that cannot be sent
            if is_interrupt(exc):
                raise
            self.machine.crew.not_given(worker, task.id, exc)

    def _give_together(self) -> None:
        """Send each worker its next tasks together, up to the first decision of another kind."""
        decisions = self.machine.decisions
        given: dict[int, list[Task]] = {}
        while decisions and decisions[0][0] is GIVE:
            _, worker, task = decisions.popleft()
            given.setdefault(worker, []).append(task)
        for worker, tasks in given.items():
            for first in range(0, len(tasks), _TOGETHER):
                some = tasks[first : first + _TOGETHER]
                try:
                    self.engine.submit_together(worker, some)
                except Exception as exc:
                    if is_interrupt(exc):
                        raise
                    decisions.extendleft((GIVE, worker, task) for task in reversed(some))
                    for _ in some:  # one by one, to find the task that cannot be sent
                        self._give(*decisions.popleft()[1:])

    def _revoke(self, worker: int, count: int | None) -> list[int]:
        """Take back `count` tasks that a worker has not begun; None for all."""
        taken: list[int] = []
        while count is None or len(taken) < count:
            task_id = self.engine.revoke(worker)
            if task_id is None:
                break
            taken.append(task_id)
        return taken

    def _start_another(self, worker: int) -> None:
        """Start another worker in place of one that has ended or is idle."""
        self._watch.forget(worker)
        try:
            self.engine.replace(worker)
        except BaseException as exc:
            if is_interrupt(exc) or not isinstance(exc, Exception):
                self.close()
                raise
            self.machine.crew.not_started(worker, exc)
            return
        self._flights.now_s = self._clock()
        self.machine.crew.started(worker)

    def _look_at(self, worker: int, *, kills: bool) -> None:
        """Inspect an unresponsive worker; kill it if requested."""
        self._warn_pending()  # show what led here before raising an error
        self._flights.now_s = self._clock()
        if self.machine.lateness.was_alive(worker, self.engine.alive_s(worker)):
            return
        pid, stack = self.engine.pid(worker), self.engine.stack(worker)  # before the kill: a dead worker has no stack
        killed = kills and self.engine.kill(worker)
        self._flights.now_s = self._clock()
        self.machine.lateness.seen(worker, Seen(pid, stack, killed))

    def _give_up(self) -> None:
        """End the workers, and raise the exception that one of them died of."""
        death, self.machine.crew.fatal = self.machine.crew.fatal, None
        self.close()
        assert death is not None
        try:
            raise death
        finally:
            del death  # avoid a reference cycle: the traceback refers to this frame

    def _warn_pending(self) -> None:
        """Issue the pending warnings. A warning filter may turn one into an exception."""
        pending_warnings = self.machine.crew.pending_warnings
        while pending_warnings:
            warn_user(*pending_warnings.pop(0))

    # -- the end -----------------------------------------------------------------------------------------------------

    def rest(self) -> None:
        """Release memory between epochs: what the program drops from now on goes back to the system at once."""
        if self._rest is not None:
            self._rest()

    def close(self) -> None:
        """End the workers and take back all their slots. May be called twice."""
        if self.closed:
            return
        with interrupts.put_off(starts_process=False):  # an interrupted close would leave workers and files behind
            self.closed = True
            self.engine.close()
            self._last.detach()
            self.machine.close()
            self._slots.close()  # the iterator was dropped, or a worker died
            self.rest()
