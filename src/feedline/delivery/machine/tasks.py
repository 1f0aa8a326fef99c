"""Who has which task, and what becomes of its slot: the lowest part of the machine.

What holds whenever a method has returned:

- A task is in `_flights` from the moment it is given to a worker until it is answered or dropped. Its number is never
  used again, so that a late answer of a worker that was replaced cannot be taken for that of another task.
- A slot belongs to a task in flight, to a batch that is ready, or to the training loop; whoever lets go releases it.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from feedline.abc.scheduler import WorkerView
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.decisions import GIVE, Decision
from feedline.delivery.machine.epoch import Epoch
from feedline.delivery.machine.flight import Flight
from feedline.types import Call, Notes, Result, ResultKind, Task


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


class Tasks:
    """The tasks of some workers.

    Args:
        worker_count: how many workers there are.
        slots: what batches are written to.
        counters: told what happened.
        moves: True if any worker may make a batch: with a seed, and on threads, which share one dataset.
        now_s: the time.
        most: how many workers there may come to be; None if their number stays.
    """

    _lacks_slots = False
    """True while tasks that the window has room for are not given, because no slot is free."""

    start_up_s = 2.0
    """Time a worker has for getting ready before it can count as late; importing torch takes about one second."""

    def __init__(
        self,
        worker_count: int,
        slots: SlotSource,
        counters: Counters,
        *,
        moves: bool = True,
        now_s: float = 0.0,
        most: int | None = None,
    ) -> None:
        self.now_s = now_s
        """The time, on any clock that does not go back. Whoever tells the machine something sets it first."""
        room = max(worker_count, most or 0)
        self.workers = [WorkerView(number, since_s=now_s + self.start_up_s) for number in range(room)]
        """By number: those that get tasks, and those that do not, or not any more."""
        self.active = self.workers[:worker_count]
        """Those that get tasks."""
        self._absent = set(range(worker_count, room))
        """Numbers of workers that were not started, or have been retired."""
        self._idle = worker_count
        """Workers that get tasks and have nothing to do."""
        self.decisions: deque[Decision] = deque()
        self.epoch: Epoch | None = None
        self.passes = 0
        """Epochs that were begun with these workers before the current one."""
        self._slots = slots
        self._counters = counters
        self._flights: dict[int, Flight] = {}
        self._next_id = 0
        self._turns = 0
        self._parked: dict[int, list[Flight]] = {}
        """Workers that are to be replaced as soon as they have nothing to do, and the tasks that wait for that."""
        self._has_begun_all: set[int] = set()
        """Workers that had nothing waiting when they were last asked, and were given nothing since."""
        self._tied: set[int] = set()
        """Workers that have, or had, a call or a task that tells them where to go on."""
        self._moves = moves
        self._unresponsive: dict[int, None] = {}
        """Workers that lost all their tasks to others and have answered nothing since, the earliest first. They may be
        stopped."""

    @property
    def is_busy(self) -> bool:
        """True while tasks are in flight."""
        return bool(self._flights)

    def _begin(self, epoch: Epoch, ordinal: int, task: Task, worker: int) -> None:
        """Give a task to a worker."""
        slot = self._slots.acquire(worker)
        flight = Flight(ordinal, worker, task, epoch.stays)
        epoch.in_flight[ordinal] = flight
        self._give(flight, slot)

    def _give(self, flight: Flight, slot: int) -> None:
        """Give a task to its worker, under a new number."""
        task = flight.task
        self._next_id += 1
        task.id, task.slot, task.epoch = self._next_id, slot, self.passes
        self._flights[task.id] = flight
        if flight.is_call or task.resume is not None:
            self._tied.add(flight.worker)
        if self._has_begun_all:
            self._has_begun_all.discard(flight.worker)
        self._hand_over(flight)

    def _hand_over(self, flight: Flight) -> None:
        worker = flight.worker
        if self._parked and worker in self._parked and not flight.is_call:
            self._parked[worker].append(flight)
        else:
            self.decisions.append((GIVE, worker, flight.task))
        self._turns += 1
        flight.turn = self._turns
        flight.given_s = self.now_s
        if self._lacks_slots:
            flight.is_held_up = True
        view = self.workers[worker]
        if view.outstanding == 0:
            self._idle -= worker < len(self.active)
            if view.since_s < self.now_s:
                view.since_s = self.now_s
        view.outstanding += 1

    def _take_from(self, view: WorkerView) -> None:
        """A worker has a task less."""
        view.outstanding -= 1
        self._idle += not view.outstanding and view.id < len(self.active)

    def call(self, call: Call) -> None:
        """Have a method of the dataset called in every worker, after the tasks it was given already."""
        for view in self.workers:
            if view.id in self._absent:
                continue  # it is given the dataset as it is by then
            self._give(Flight(-1, view.id, Task(0, call), is_call=True), -1)

    def _oldest_of(self, worker: int | None) -> Flight | None:
        """Return the task that a worker, or any, has been at for longest; None if there is none."""
        held = [flight for flight in self._flights.values() if worker is None or flight.worker == worker]
        return min(held, key=by_turn, default=None)

    def _may_move_from(self, source: int) -> bool:
        """True if work may move away from a worker.

        Not while that worker still has a call to make or a state to resume from: what must stay is given again behind
        the rest, and the tasks after it must not overtake it.
        """
        if source in self._tied:  # only then: with thousands of workers there are many tasks to go through
            if any(
                flight.worker == source and (flight.is_call or flight.task.resume is not None)
                for flight in self._flights.values()
            ):
                return False
            self._tied.discard(source)
        return True

    # -- answers -----------------------------------------------------------------------------------------------------

    def _settle(self, flight: Flight, result: Result) -> None:
        """Take an answer; its slot comes back unless a batch lies in it that somebody wants."""
        if not flight.wanted or result.kind is not ResultKind.DONE:
            self._slots.release(flight.task.slot)
        if not flight.wanted:
            return
        assert self.epoch is not None
        result.flight, flight.came_s = flight, self.now_s
        if flight.trouble is not None and flight.trouble.faults:
            result.notes = result.notes or Notes()
            result.notes.faults = [*flight.trouble.faults, *result.notes.faults]
        self.epoch.arrived(flight, result)

    def _drop(self, flight: Flight) -> None:
        """Take back the slot of a task that will not be answered."""
        flight = flight.whole
        flight.wanted = False
        self._slots.release(flight.task.slot)


def by_turn(flight: Flight) -> int:
    """Order tasks by when they were given to a worker."""
    return flight.turn
