"""Workers that die, grow, are replaced, added or retired, and the tasks that they leave.

A worker's death does not change what is delivered: its tasks are done again, in the same slots, under new ids. The task
that it had begun comes first, or its samples one by one if one of them may kill (`Recovery`).
"""

from __future__ import annotations

from dataclasses import replace

from feedline.delivery.machine.epoch import Flight
from feedline.delivery.machine.flights import GIVE, RETIRE, START, TAKE_BACK, Flights
from feedline.delivery.machine.recovery import Recovery, Redone
from feedline.errors import FeedlineWarning, WorkerError, WorkerStartError, WorkerTimeout, WorkerWarning
from feedline.types import Call, Position, Result, ResultKind, Task


class Crew:
    """The lives of workers.

    Args:
        flights: the tasks.
        recovery: decides what to do about deaths.
        worker_count: number of workers at the beginning.
    """

    def __init__(self, flights: Flights, recovery: Recovery, worker_count: int) -> None:
        self.pending_warnings: list[tuple[str, type[FeedlineWarning]]] = []
        """Warnings to issue when raising is safe: a warning filter may turn one into an exception."""
        self.fatal: BaseException | None = None
        """The exception after which the workers cannot continue."""
        self.is_elastic = False
        """True if there may be fewer workers than were decided."""
        self.silent = set(range(worker_count))
        """Workers that have not answered since they were started."""
        self.stuck: dict[int, WorkerTimeout] = {}
        """Workers killed because they did not answer, and the error that says so."""
        self._flights = flights
        self._recovery = recovery
        self._deaths: dict[int, BaseException] = {}
        """What workers died of whose replacement is being started."""
        self._unsent_call: BaseException | None = None
        """The exception that kept a call from being sent."""

    def begin_epoch(self) -> None:
        """Reset the budget of restarts."""
        self._recovery.begin_epoch()

    @property
    def have_all_answered(self) -> bool:
        """True if every active worker has answered a task, and all surplus workers are gone."""
        flights = self._flights
        return not self.silent and len(flights.active) + len(flights.absent) == len(flights.workers)

    # -- tasks that did not reach their worker, or were taken back ---------------------------------------------------

    def not_given(self, worker: int, task_id: int, exc: Exception) -> None:
        """Handle a task whose contents could not be sent; `exc` is raised when its batch would have been delivered."""
        flight = self._flights.remove(worker, task_id)
        if flight.task.resume is not None:
            self._attach_to_next_task(worker, flight.task.resume)
        if flight.is_call:
            self._unsent_call = exc
        else:
            self._flights.accept(flight.requested, Result(ResultKind.FAILED, worker, task_id, exc))
        self._retire_if_idle(worker)

    def check_call(self) -> None:
        """Raise, in the caller of the method, what kept the call from being sent to workers."""
        if self._unsent_call is not None:
            unsent, self._unsent_call = self._unsent_call, None
            raise unsent

    def _attach_to_next_task(self, worker: int, resume: Position) -> None:
        """Attach the state to resume from to the next task of a worker."""
        for what, other, *rest in self._flights.decisions:
            if what is GIVE and other == worker and type(rest[0].indices) is not Call:
                rest[0].resume = resume
                return
        self._flights.owed[worker] = resume

    def taken_back(self, worker: int, target: int | None, task_ids: list[int]) -> None:
        """Handle tasks taken back from a worker that had not begun them, as decided."""
        flights, has_moved = self._flights, False
        for task_id in task_ids:
            flight = flights.remove(worker, task_id)
            # Calls, probes and tasks that carry a state to resume from are meant for this worker only.
            alone = flight.is_call or flight.suspect is not None or flight.task.resume is not None
            if target is None:
                self._give_again(flight)
                continue
            if not alone:
                flight.worker, has_moved = target, True
                flights.counters.relieved += 1
            flights.give(flight, flight.task.slot)
        if target is not None and not (has_moved and flights.of[worker]):
            flights.drained[worker] = None
        self.end_if_idle(worker)

    def _give_again(self, flight: Flight) -> None:
        """Assign a task again to its worker, or to the one that replaces it, if it is still wanted."""
        if flight.is_call:
            # The dataset that a new worker receives includes the call.
            if flight.worker not in self._flights.parked:
                self._flights.give(flight, flight.task.slot)
        elif not flight.requested.wanted:
            self._flights.drop(flight)
        else:
            self._flights.give(flight, flight.task.slot)

    # -- workers that died, or are to go -----------------------------------------------------------------------------

    def died(self, worker: int, death: BaseException, unbegun: list[int]) -> None:
        """Handle the death of a worker; `unbegun` are the tasks that it had not begun."""
        flights, recovery = self._flights, self._recovery
        if worker in flights.absent:
            return  # it died after its last task, and was not to be replaced
        waits = {*unbegun, *self._withdraw_decisions(worker)}
        death = self.stuck.pop(worker, death)
        if self.is_elastic and worker and isinstance(death, WorkerStartError) and self._do_without(worker):
            return
        held = list(flights.of[worker].values())
        flights.of[worker].clear()
        begun = None
        if isinstance(death, WorkerError):  # otherwise it kept the worker from getting ready
            begun = next((flight for flight in held if flight.task.id not in waits), None)
        waiting = [flight for flight in held if flight is not begun] + flights.parked.get(worker, [])
        end = recovery.end_by(death, begun)
        if end is not None:
            flights.parked[worker] = waiting if begun is None else [begun, *waiting]
            self._end(end)
            return
        flights.counters.restarts += 1
        self.pending_warnings.append((recovery.restart_warning(death, begun), WorkerWarning))
        self._deaths[worker] = death
        flights.parked[worker] = []
        if begun is not None and begun.requested.wanted and not begun.is_call:
            self._act(begun.requested, recovery.redo(begun, death))
        elif begun is not None:
            self._give_again(begun)
        for flight in waiting:
            self._give_again(flight)
        flights.decisions.append((START, worker))

    def _withdraw_decisions(self, worker: int) -> list[int]:
        """Withdraw the pending decisions about a worker; return its tasks among them, none of which has killed it."""
        decisions = list(self._flights.decisions)
        self._flights.decisions.clear()
        self._flights.decisions.extend(one for one in decisions if one[1] != worker)
        return [one[2].id for one in decisions if one[0] is GIVE and one[1] == worker]

    def grown(self, worker: int) -> None:
        """Handle a worker above its memory limit: it finishes what it has begun, then another replaces it."""
        flights = self._flights
        if worker not in flights.parked and worker < len(flights.active):
            flights.parked[worker] = []
            flights.decisions.append((TAKE_BACK, worker, None))

    def end_if_idle(self, worker: int) -> None:
        """End a worker that has nothing left to do if it has grown, which replaces it, or is surplus."""
        flights = self._flights
        if worker not in flights.parked:
            self._retire_if_idle(worker)
        elif not flights.of[worker] and (START, worker) not in flights.decisions:
            flights.counters.recycled += 1  # as it did not die, this is not a restart
            flights.decisions.append((START, worker))

    def started(self, worker: int) -> None:
        """Give a worker that was started the tasks of the one it replaces."""
        flights = self._flights
        self._deaths.pop(worker, None)
        waiting = flights.parked.pop(worker, [])
        view, epoch = flights.workers[worker], flights.epoch
        view.outstanding = 0
        view.since_s = flights.now_s + flights.start_up_s
        self.silent.add(worker)
        flights.drained.pop(worker, None)
        resume = None if epoch is None else epoch.resume_for(worker)
        if resume is not None:
            flights.owed[worker] = resume
        for flight in waiting:
            self._give_again(flight)
        self._retire_if_idle(worker)

    def not_started(self, worker: int, exc: Exception) -> None:
        """Handle a failed start: fatal, unless the worker was an addition."""
        flights = self._flights
        if worker in flights.parked:
            exc.__cause__ = self._deaths.pop(worker, None)
            self._end(self._recovery.with_budget_note(exc))
        else:
            flights.absent.add(worker)
            self.resize(min(worker, len(flights.active)))

    def _end(self, last: BaseException) -> None:
        """Give up after a death that cannot be recovered from; log the samples that were found to kill."""
        epoch = self._flights.epoch
        if epoch is not None:
            suspects = [flight.requested for flight in self._flights if flight.requested.wanted]
            found = [fault for one in suspects if one.trouble is not None for fault in one.trouble.faults]
            epoch.fault_budget.write(found, 0, epoch.number)
        self.fatal = last

    # -- tasks over which workers died -------------------------------------------------------------------------------

    def survived(self, suspect: Flight) -> None:
        """Continue the search after a sample of a task that kills workers was made without harm."""
        if not suspect.wanted:
            self._flights.drop(suspect)
        else:
            self._act(suspect, self._recovery.survived(suspect))

    def _act(self, flight: Flight, redone: Redone) -> None:
        if redone is None:
            self._flights.give(flight, flight.task.slot)
        elif isinstance(redone, Task):
            self._flights.give(Flight(flight.ordinal, flight.worker, redone, suspect=flight), flight.task.slot)
        else:
            self._flights.accept(flight, redone)

    # -- workers that are added or retired ---------------------------------------------------------------------------

    def resize(self, count: int, depth: int | None = None) -> None:
        """Change the number of workers, up to the maximum; each may have `depth` tasks at once.

        New workers are started. If there are too many, those with the highest numbers get no more tasks and are retired
        once they have answered the tasks they have; no task is taken from them, so this works for streams too. Call it
        when no decision is pending. Do not use it for workers that have a state or a stream of their own.
        """
        flights = self._flights
        assert 0 < count <= len(flights.workers)
        flights.active = flights.workers[:count]
        for worker in sorted(flights.absent.intersection(range(count))):
            flights.absent.discard(worker)
            flights.decisions.append((START, worker))
        for worker in range(count, len(flights.workers)):
            self._retire_if_idle(worker)
        epoch = flights.epoch
        if epoch is not None:
            depth = depth or epoch.limits.depth
            epoch.limits = replace(epoch.limits, window=count * depth, depth=depth)
            epoch.scheduler.depth = depth

    def _do_without(self, worker: int) -> bool:
        """Drop a worker that could not be placed, and reassign its tasks; False if they cannot move."""
        flights = self._flights
        held = [*flights.of[worker].values(), *flights.parked.get(worker, [])]
        if any(flight.stays for flight in held):
            return False
        flights.parked.pop(worker, None)
        flights.of[worker].clear()
        flights.workers[worker].outstanding = 0
        self.resize(min(worker, len(flights.active)))
        for flight in held:
            if flight.is_call:
                continue
            flight.task.resume = None  # the others have their states already
            flight.worker = min(flights.active, key=lambda view: view.outstanding).id
            self._give_again(flight)
        return True

    def _retire_if_idle(self, worker: int) -> None:
        """Retire a surplus worker once it has finished its tasks."""
        flights = self._flights
        is_kept = worker < len(flights.active) or worker in flights.absent or worker in flights.parked
        if is_kept or flights.workers[worker].outstanding:
            return
        flights.absent.add(worker)
        flights.drained.pop(worker, None)
        self.silent.discard(worker)
        flights.decisions.append((RETIRE, worker))
