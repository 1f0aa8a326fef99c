"""Workers that answer, die, grow and are replaced, and their tasks: the middle layer of the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.decisions import GIVE, RETIRE, START, TAKE_BACK
from feedline.delivery.machine.epoch import Memory
from feedline.delivery.machine.flight import Flight
from feedline.delivery.machine.prefetch import Pace
from feedline.delivery.machine.recovery import Recovery, Redone
from feedline.delivery.machine.tasks import SlotSource, Tasks, by_turn
from feedline.errors import FeedlineWarning, WorkerStartError, WorkerTimeout, WorkerWarning
from feedline.order.progress import has_state
from feedline.types import Call, Notes, Result, ResultKind, Resume, Task


@dataclass(slots=True)
class _Replacement:
    """A worker that is being replaced, and the tasks it leaves."""

    death: BaseException | None
    """None if it was replaced for its memory use, or is new."""
    begun: Flight | None
    waiting: list[Flight]
    is_new: bool = False
    """True if this worker is an addition and replaces none."""


class Workers(Tasks):
    """Workers and their tasks.

    Args:
        worker_count: number of workers.
        slots: where batches are written.
        recovery: decides what to do about deaths.
        counters: records what happened.
        moves: True if any worker may make any batch: with a seed, and on threads, which share one dataset.
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
        moves: bool = True,
        now_s: float = 0.0,
        most: int | None = None,
    ) -> None:
        super().__init__(worker_count, slots, counters, moves=moves, now_s=now_s, most=most)
        self.pending_warnings: list[tuple[str, type[FeedlineWarning]]] = []
        """Warnings to issue when raising is safe: a warning filter may turn one into an exception."""
        self.fatal: BaseException | None = None
        """The exception after which the workers cannot continue."""
        self.memory = Memory()
        self._recovery = recovery
        self._pace = Pace()
        self._leaving: dict[int, _Replacement] = {}
        """Workers whose replacement is being started."""
        self._silent = set(range(worker_count))
        """Workers that have not answered since they were started."""
        self._owed: dict[int, Resume] = {}
        """States from which new workers resume, until sent to them."""
        self._moving: tuple[int, int] | None = None
        """The worker that a task is being taken back from, and the worker that gets it."""
        self._stuck: dict[int, WorkerTimeout] = {}
        """Workers killed because they did not answer, and the error that says so."""
        self._failed_call: BaseException | None = None
        """What a call raised in a worker; the next `ask` raises it."""
        self._reported_call: Call | None = None
        self.is_elastic = False
        """True if the machine may run with fewer workers than were decided."""
        self._unsent_call: BaseException | None = None
        """The exception that kept a call from being sent."""

    def answered(self, result: Result) -> None:
        """Handle the answer of a worker."""
        flight = self._flights.get(result.task_id)
        if flight is None or flight.worker != result.worker:
            return  # from a worker that was replaced, or that lost the task to another
        del self._flights[result.task_id]
        worker = result.worker
        view = self.workers[worker]
        self._take_from(view)
        view.since_s = self.now_s
        if self._has_begun_all:
            self._has_begun_all.discard(worker)
        if self._silent and worker in self._silent:
            self._silent.discard(worker)
            self._recovery.answered(worker)
        if self._unresponsive:
            self._unresponsive.pop(worker, None)
        if result.busy_ns:
            self._pace.note(result.busy_ns)
        notes = result.notes
        if notes is not None and has_state(notes):
            has_ended = result.kind is ResultKind.ENDED
            self.memory.last_notes[worker] = notes.outlasting() if has_ended else notes
            self.memory.noted_in[worker] = flight.task.epoch + has_ended
        if flight.suspect is not None:
            self._survived(flight.suspect)
        elif flight.is_call:
            if result.kind is ResultKind.FAILED and flight.task.indices is not self._reported_call:
                self._reported_call = flight.task.indices  # the other workers will report the same
                self._failed_call = result.payload
        else:
            self._settle(flight, result)
        if self._parked and worker in self._parked:
            self._replace_if_idle(worker)
        elif worker >= len(self.active):
            self._retire_if_idle(worker)

    def not_given(self, task_id: int, exc: Exception) -> None:
        """Handle a task whose contents could not be sent; `exc` is raised when its batch would have been delivered."""
        flight = self._flights.pop(task_id)
        self._take_from(self.workers[flight.worker])
        if flight.task.resume is not None:
            self._attach_to_next_task(flight.worker, flight.task.resume)
        if flight.is_call:
            self._unsent_call = exc
            self._retire_if_idle(flight.worker)
            return
        failed = Result(ResultKind.FAILED, flight.worker, task_id, exc)
        self._settle(flight.whole, failed)
        self._retire_if_idle(flight.worker)

    def check_call(self) -> None:
        """Raise, in the caller of the method, what kept the call from being sent to workers."""
        if self._unsent_call is not None:
            unsent, self._unsent_call = self._unsent_call, None
            raise unsent

    def _attach_to_next_task(self, worker: int, resume: Resume) -> None:
        """Attach the state to resume from to the next task of a worker."""
        assert self.epoch is not None
        for what, other, *rest in self.decisions:
            if what is GIVE and other == worker and type(rest[0].indices) is not Call:
                rest[0].resume = resume
                self._tied.add(worker)
                return
        self.epoch.owe(worker, resume)

    def taken_back(self, worker: int, task_ids: list[int]) -> None:
        """Handle tasks taken back from a worker that had not begun them, as decided."""
        moving, self._moving = self._moving, None
        target = moving[1] if moving is not None and moving[0] == worker else None
        if target is not None:
            self._has_begun_all.add(worker)  # unless a task that may move is found below
        view = self.workers[worker]
        for task_id in task_ids:
            flight = self._flights[task_id]
            self._take_from(view)
            if target is None and not flight.whole.wanted and not flight.is_call:  # the worker is being replaced
                del self._flights[task_id]
                self._drop(flight)
                continue
            # Calls, probes and tasks that carry a state to resume from are meant for this worker only.
            alone = flight.is_call or flight.suspect is not None or flight.task.resume is not None
            if target is not None and not alone:
                flight.worker = target
                self._counters.relieved += 1
                self._has_begun_all.discard(worker)
            self._hand_over(flight)
        if target is not None and not view.outstanding:
            self._unresponsive[worker] = None
        if worker in self._parked:
            self._replace_if_idle(worker)
        else:
            self._retire_if_idle(worker)

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
        """Handle the death of a worker; `unbegun` are the tasks that it had not begun."""
        if worker in self._absent:
            return  # it died after its last task, and was not to be replaced
        unbegun = [*unbegun, *self._not_given_any_more(worker)]
        death = self._stuck.pop(worker, death)
        if self.is_elastic and worker and isinstance(death, WorkerStartError) and self._do_without(worker):
            return
        waits = {*unbegun, *(flight.task.id for flight in self._parked.pop(worker, []))}
        held = sorted((flight for flight in self._flights.values() if flight.worker == worker), key=by_turn)
        for flight in held:
            del self._flights[flight.task.id]
        begun = next((flight for flight in held if flight.task.id not in waits), None)
        waiting = [flight for flight in held if flight is not begun]
        if begun is not None and not self._recovery.is_ready(death):
            waiting, begun = held, None
        end = self._recovery.end_by(worker, death, begun)
        replacement = _Replacement(death, begun, waiting)
        if end is not None:
            self._end(end, replacement)
            return
        self._counters.restarts += 1
        self._replace(worker, replacement)

    def _not_given_any_more(self, worker: int) -> list[int]:
        """Remove pending assignments to a worker, and return their tasks: none of them can have killed it."""
        decisions = list(self.decisions)
        self.decisions.clear()
        self.decisions.extend(one for one in decisions if one[0] is not GIVE or one[1] != worker)
        return [one[2].id for one in decisions if one[0] is GIVE and one[1] == worker]

    def grown(self, worker: int) -> None:
        """Handle a worker above its memory limit: it finishes what it has begun, then another replaces it."""
        if worker not in self._parked and worker not in self._leaving and worker < len(self.active):
            self._parked[worker] = []
            self.decisions.append((TAKE_BACK, worker, None))

    def _replace_if_idle(self, worker: int) -> None:
        """Replace a parked worker once it has finished what it had begun. As it did not die, this is not a restart."""
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
        """Give a worker that was started the tasks of the one it replaces."""
        left, epoch, view = self._leaving.pop(worker), self.epoch, self.workers[worker]
        self._idle += view.outstanding > 0 and worker < len(self.active)
        view.outstanding = 0
        self._silent.add(worker)
        view.since_s = self.now_s + self.start_up_s
        self._unresponsive.pop(worker, None)
        resume = None if epoch is None else epoch.resume_for(worker)
        if resume is not None:
            self._owed[worker] = resume
        if left.death is not None:
            warning = self._recovery.restart_warning(left.death, worker, left.begun)
            self.pending_warnings.append((warning, WorkerWarning))
        if left.begun is not None:
            self._redo(left.begun, left.death)
        self._give_again(worker, left.waiting)
        if worker in self._owed and epoch is not None and not view.outstanding:
            epoch.owe(worker, self._owed.pop(worker))
        self._retire_if_idle(worker)

    # -- workers that are added or retired ---------------------------------------------------------------------------

    def resize(self, count: int, depth: int | None = None) -> None:
        """Change the number of workers, up to the maximum; each may have `depth` tasks at once.

        New workers are started. If there are too many, those with the highest numbers get no more tasks and are retired
        once they have answered the tasks they have; no task is taken from them, so this works for streams too. Call it
        when no decision is pending. Do not use it for workers that have a state or a stream of their own.
        """
        assert 0 < count <= len(self.workers)
        self.active = self.workers[:count]
        self._idle = sum(not view.outstanding for view in self.active)
        for worker in sorted(self._absent.intersection(range(count))):
            self._absent.discard(worker)
            self._replace(worker, _Replacement(None, None, [], is_new=True))
        for worker in range(count, len(self.workers)):
            self._retire_if_idle(worker)
        epoch = self.epoch
        if epoch is not None:
            depth = depth or epoch.limits.depth
            epoch.limits = replace(epoch.limits, window=count * depth, depth=depth)
            epoch.scheduler.depth = depth

    def work(self) -> tuple[int, int]:
        """Return how many tasks were answered with a batch, and their total time in nanoseconds."""
        return self._pace.work()

    @property
    def is_settled(self) -> bool:
        """True if every active worker has answered a task, and all surplus workers are gone."""
        return not self._silent and len(self.active) + len(self._absent) == len(self.workers)

    def _do_without(self, worker: int) -> bool:
        """Drop a worker that could not be placed, and reassign its tasks; False if they cannot move."""
        held = sorted((flight for flight in self._flights.values() if flight.worker == worker), key=by_turn)
        if any(flight.stays for flight in held):
            return False
        self._parked.pop(worker, None)
        for _ in held:
            self._take_from(self.workers[worker])
        self.resize(min(worker, len(self.active)))
        for flight in held:
            if flight.is_call or not flight.whole.wanted:
                del self._flights[flight.task.id]
                self._drop(flight)
                continue
            flight.task.resume = None  # the others have their states already
            flight.worker = min(self.active, key=lambda view: view.outstanding).id
            self._hand_over(flight)
        return True

    def _retire_if_idle(self, worker: int) -> None:
        """Retire a surplus worker once it has finished its tasks."""
        is_kept = worker < len(self.active) or worker in self._absent or worker in self._leaving
        if is_kept or self.workers[worker].outstanding:
            return
        self._absent.add(worker)
        self._unresponsive.pop(worker, None)
        for workers in (self._silent, self._has_begun_all):
            workers.discard(worker)
        self.decisions.append((RETIRE, worker))

    def not_started(self, worker: int, exc: Exception) -> None:
        """Handle a failed start: fatal, unless the worker was an addition."""
        left = self._leaving.pop(worker)
        if left.is_new:
            self._absent.add(worker)
            self.resize(min(worker, len(self.active)))
            return
        if left.death is not None:
            exc.__cause__ = left.death
        self._end(self._recovery.with_budget_note(exc), left)

    def _end(self, last: BaseException, left: _Replacement) -> None:
        """Give up after a death that cannot be recovered from."""
        killers: list[object] = []
        for flight in left.waiting if left.begun is None else [left.begun, *left.waiting]:
            trouble = flight.whole.trouble
            killers += [] if trouble is None or not flight.whole.wanted else trouble.faults
            self._drop(flight)
        if killers and self.epoch is not None:
            result = Result(ResultKind.DIED, -1, -1, notes=Notes(faults=killers))
            self.epoch.fault_budget.enter(result, 0, self.epoch.number)
        self.fatal = last

    # -- tasks over which workers died -------------------------------------------------------------------------------

    def _redo(self, begun: Flight, death: BaseException | None) -> None:
        if not begun.whole.wanted:  # from an epoch that was left
            self._drop(begun)
        elif begun.is_call:
            self._give_again(begun.worker, [begun])
        else:
            assert death is not None
            self._act(begun.whole, self._recovery.redo(begun, death))

    def _survived(self, suspect: Flight) -> None:
        """Continue the search after a part of a task that kills workers was made without harm."""
        if not suspect.wanted:
            self._drop(suspect)
        else:
            self._act(suspect, self._recovery.survived(suspect))

    def _act(self, flight: Flight, redone: Redone) -> None:
        if redone is None:
            self._give_again(flight.worker, [flight])
        elif isinstance(redone, Task):
            self._give(Flight(flight.ordinal, flight.worker, redone, suspect=flight), flight.task.slot)
        else:
            self._settle(flight, redone)

    def _give_again(self, worker: int, flights: list[Flight]) -> None:
        """Give a new worker the tasks of its predecessor."""
        for flight in flights:
            if flight.is_call:
                continue  # the dataset that the new worker received includes the call
            if not flight.whole.wanted:
                self._drop(flight)
            else:
                if worker in self._owed:
                    flight.task.resume = self._owed.pop(worker)
                self._give(flight, flight.task.slot)
