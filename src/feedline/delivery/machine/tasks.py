"""Which worker has which task, and who owns its slot: the lowest layer of the machine.

These hold whenever a method has returned:

- A task is in `_flights` from the moment it is assigned to a worker until it is answered or dropped. Its id is never
  reused, so a late answer of a replaced worker cannot be mistaken for that of another task.
- A slot belongs to a task in flight, to a ready batch, or to the training loop; the last owner releases it.
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
    """Source of slots: the part of the arena's bookkeeping that the machine needs; a counter in the simulation."""

    def left(self) -> int:
        """Return how many more tasks can be assigned now."""

    def acquire(self, worker: int) -> int:
        """Return a slot for a task of a worker; -1 if the task must do without."""

    def release(self, slot: int, used: int | None = None) -> None:
        """Take back an empty slot."""

    def discard(self, result: Result) -> None:
        """Take back the slot of an unwanted batch."""

    def fit_messages(self) -> int:
        """Return how many batches of one worker can wait for the training loop in messages."""


class Tasks:
    """The tasks of a set of workers.

    Args:
        worker_count: number of workers.
        slots: where batches are written.
        counters: records what happened.
        moves: True if any worker may make any batch: with a seed, and on threads, which share one dataset.
        now_s: the current time.
        most: maximum number of workers; None if the number is fixed.
    """

    _lacks_slots = False
    """True while tasks that fit in the window are not assigned because no slot is free."""

    start_up_s = 2.0
    """Start-up time before a worker can count as late; importing torch takes about one second."""

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
        """The time, on any monotonic clock. Set it before you report an event to the machine."""
        max_workers = max(worker_count, most or 0)
        self.workers = [WorkerView(number, since_s=now_s + self.start_up_s) for number in range(max_workers)]
        """All workers by number, including those that do not get tasks yet or any more."""
        self.active = self.workers[:worker_count]
        """The workers that get tasks."""
        self._absent = set(range(worker_count, max_workers))
        """Numbers of workers that were not started, or have been retired."""
        self._idle = worker_count
        """Number of active workers without a task."""
        self.decisions: deque[Decision] = deque()
        self.epoch: Epoch | None = None
        self.passes = 0
        """Epochs begun with these workers before the current one."""
        self._slots = slots
        self._counters = counters
        self._flights: dict[int, Flight] = {}
        self._next_id = 0
        self._turns = 0
        self._parked: dict[int, list[Flight]] = {}
        """Workers to replace once they are idle, with the tasks held until then."""
        self._has_begun_all: set[int] = set()
        """Workers that had no waiting task at the last check, and have been given none since."""
        self._tied: set[int] = set()
        """Workers that have, or had, a call or a task that carries a state to resume from."""
        self._moves = moves
        self._unresponsive: dict[int, None] = {}
        """Workers that lost all their tasks to others and have answered nothing since, the earliest first. They may be
        stopped.
        """

    @property
    def is_busy(self) -> bool:
        """True while tasks are in flight."""
        return bool(self._flights)

    def _begin(self, epoch: Epoch, ordinal: int, task: Task, worker: int) -> None:
        """Assign a task to a worker."""
        slot = self._slots.acquire(worker)
        flight = Flight(ordinal, worker, task, epoch.stays)
        epoch.in_flight[ordinal] = flight
        self._give(flight, slot)

    def _give(self, flight: Flight, slot: int) -> None:
        """Assign a task to its worker under a new id."""
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
        """Count one task fewer for a worker."""
        view.outstanding -= 1
        self._idle += not view.outstanding and view.id < len(self.active)

    def call(self, call: Call) -> None:
        """Call a method of the dataset in every worker, after the tasks already assigned to it."""
        for view in self.workers:
            if view.id in self._absent:
                continue  # it will start with the current dataset
            self._give(Flight(-1, view.id, Task(0, call), is_call=True), -1)

    def _oldest_of(self, worker: int | None) -> Flight | None:
        """Return the earliest assigned task of a worker, or of all workers; None if there is none."""
        held = [flight for flight in self._flights.values() if worker is None or flight.worker == worker]
        return min(held, key=by_turn, default=None)

    def _may_move_from(self, source: int) -> bool:
        """True if work may move away from a worker.

        Work must stay while the worker has a call to make or a state to resume from: tasks that must stay are assigned
        again behind the rest, and later tasks must not overtake them.
        """
        if source in self._tied:  # checked first: with thousands of workers the loop is long
            if any(
                flight.worker == source and (flight.is_call or flight.task.resume is not None)
                for flight in self._flights.values()
            ):
                return False
            self._tied.discard(source)
        return True

    # -- answers -----------------------------------------------------------------------------------------------------

    def _settle(self, flight: Flight, result: Result) -> None:
        """Accept an answer; release its slot unless it holds a wanted batch."""
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
    """Order tasks by when they were assigned."""
    return flight.turn
