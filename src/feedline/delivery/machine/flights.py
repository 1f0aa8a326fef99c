"""The table of flights: which worker has which task, and who owns its slot; and the decisions about tasks and workers.

These hold whenever a method of the machine or of its parts has returned:

- A task is in the table from the moment it is assigned to a worker until it is answered or dropped. Whenever it is
  assigned it gets a new id, so a late answer of a replaced worker cannot be mistaken for that of another task.
- A slot belongs to a task in flight, to a ready batch, or to the training loop; the last owner releases it.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from feedline.abc.scheduler import WorkerView
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.epoch import Epoch, Flight
from feedline.types import Call, Notes, Position, Result, ResultKind, Task

GIVE = "give"
"""(GIVE, worker, task): submit the task; call `not_given` if it cannot be sent."""

TAKE_BACK = "take back"
"""(TAKE_BACK, worker, target): revoke a task that it has not begun, for the worker `target`, or all of them if that is
None, and call `taken_back`.
"""

START = "start"
"""(START, worker): start a worker, replacing the previous one if any; call `started` or `not_started`."""

RETIRE = "retire"
"""(RETIRE, worker): end this idle worker without a replacement."""

LOOK_AT = "look at"
"""(LOOK_AT, worker, kills): inspect this unresponsive worker, kill it if `kills`, and call `seen`."""

Decision = tuple[Any, ...]
"""What a driver has to do: a tuple that begins with one of these words."""

_UNKNOWN_S = 0.1
"""Assumed duration of a task before any has been answered. A guess, not measured."""


class SlotSource(Protocol):
    """Source of slots: the part of the arena's bookkeeping that the machine needs; a counter in the simulation."""

    def left(self, in_flight: int) -> int:
        """Return how many more tasks can be assigned now."""

    def acquire(self, worker: int) -> int:
        """Return a slot for a task of a worker; -1 if the task must do without."""

    def release(self, slot: int, used: int | None = None) -> None:
        """Take back an empty slot."""

    def discard(self, result: Result) -> None:
        """Take back the slot of an unwanted batch."""

    def fit_messages(self) -> int:
        """Return how many batches of one worker can wait for the training loop in messages."""


class Pace:
    """How long the last tasks took."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=32)
        self._answers = 0
        self._busy_ns = 0
        self._typical_s: float | None = None

    def note(self, busy_ns: int) -> None:
        """Record how long a worker was busy with a task."""
        self._recent.append(busy_ns)
        self._answers += 1
        self._busy_ns += busy_ns

    def work(self) -> tuple[int, int]:
        """Return how many tasks were recorded, and their total time in nanoseconds."""
        return self._answers, self._busy_ns

    def typical_s(self) -> float:
        """The median time of recent tasks."""
        if self._answers & 15 == 1 or self._typical_s is None:  # sorting per batch would slow down small ones
            recent = sorted(self._recent)
            self._typical_s = recent[len(recent) // 2] / 1e9 if recent else None
        return _UNKNOWN_S if self._typical_s is None else self._typical_s

    def grace_s(self) -> float:
        """Return how long a worker may take for a task before it counts as late."""
        return 2.0 * self.typical_s() + 0.005


class Flights:
    """The tasks of a set of workers.

    Args:
        worker_count: number of workers.
        slots: where batches are written.
        counters: records what happened.
        now_s: the current time.
        most: maximum number of workers; None if the number is fixed.
    """

    start_up_s = 2.0
    """Start-up time before a worker can count as late; importing torch takes about one second."""

    def __init__(
        self, worker_count: int, slots: SlotSource, counters: Counters, *, now_s: float = 0.0, most: int | None = None
    ) -> None:
        self.now_s = now_s
        """The time, on any monotonic clock. Set it before you report an event to the machine."""
        max_workers = max(worker_count, most or 0)
        self.workers = [WorkerView(number, since_s=now_s + self.start_up_s) for number in range(max_workers)]
        """All workers by number, including those that do not get tasks yet or any more."""
        self.active = self.workers[:worker_count]
        """The workers that get tasks."""
        self.absent = set(range(worker_count, max_workers))
        """Numbers of workers that were not started, or have been retired."""
        self.of: list[dict[int, Flight]] = [{} for _ in self.workers]
        """The tasks that each worker has, by their ids, the earliest assigned first."""
        self.parked: dict[int, list[Flight]] = {}
        """Workers that are being replaced, with the tasks that wait for the new worker."""
        self.drained: dict[int, None] = {}
        """Workers from which no more tasks could be taken for others, the earliest first, and that have neither got
        nor answered a task since. Those without a task may be stopped.
        """
        self.owed: dict[int, Position] = {}
        """Where to resume, for workers that are told with their next task."""
        self.epochs = 0
        """Epochs begun with these workers before the current one."""
        self.decisions: deque[Decision] = deque()
        self.epoch: Epoch | None = None
        self.lacks_slots = False
        """True while tasks that fit in the window are not assigned because no slot is free."""
        self.pace = Pace()
        self.slots = slots
        self.counters = counters
        self._last_id = 0

    def __iter__(self) -> Iterator[Flight]:
        for flights in self.of:
            yield from flights.values()
        for waiting in self.parked.values():
            yield from waiting

    @property
    def count(self) -> int:
        """Tasks in flight."""
        return sum(map(len, self.of))

    @property
    def is_busy(self) -> bool:
        """True while tasks are in flight."""
        return any(self.of) or any(self.parked.values())

    def give_next(self, epoch: Epoch) -> bool:
        """Assign the next task of an epoch; False if there is none or no worker may have it."""
        flight = epoch.next(self.active)
        if flight is None:
            return False
        epoch.in_flight[epoch.sent] = flight
        self.give(flight, self.slots.acquire(flight.worker))
        epoch.sent += 1
        return True

    def give(self, flight: Flight, slot: int) -> None:
        """Assign a task to its worker under a new id."""
        task, worker, owed = flight.task, flight.worker, self.owed
        self._last_id = task.id = self._last_id + 1
        task.slot, task.epoch = slot, self.epochs
        if owed and worker in owed and not flight.is_call:
            task.resume = owed.pop(worker).copied()  # threads share objects
        flight.given_s = self.now_s
        if self.lacks_slots:
            flight.is_held_up = True
        if self.parked and worker in self.parked:
            self.parked[worker].append(flight)
        else:
            self.decisions.append((GIVE, worker, task))
            self.of[worker][task.id] = flight
        if self.drained:
            self.drained.pop(worker, None)
        view = self.workers[worker]
        if not view.outstanding and view.since_s < self.now_s:
            view.since_s = self.now_s
        view.outstanding += 1

    def remove(self, worker: int, task_id: int) -> Flight:
        """Remove a task that its worker will not answer."""
        self.workers[worker].outstanding -= 1
        return self.of[worker].pop(task_id)

    def accept(self, flight: Flight, result: Result) -> None:
        """Accept an answer; release its slot unless it holds a wanted batch."""
        if not flight.wanted or result.kind is not ResultKind.DONE:
            self.slots.release(flight.task.slot)
        if not flight.wanted:
            return
        epoch = self.epoch
        assert epoch is not None
        del epoch.in_flight[flight.ordinal]
        result.flight, flight.came_s = flight, self.now_s
        if flight.trouble is not None and flight.trouble.faults:
            result.notes = result.notes or Notes()
            result.notes.faults = [*flight.trouble.faults, *result.notes.faults]
        epoch.arrived(flight, result)

    def drop(self, flight: Flight) -> None:
        """Take back the slot of a task that will not be answered."""
        flight = flight.requested
        flight.wanted = False
        self.slots.release(flight.task.slot)

    def call(self, call: Call) -> None:
        """Call a method of the dataset in every worker, after the tasks already assigned to it."""
        for view in self.workers:
            if view.id not in self.absent and view.id not in self.parked:  # those will start with the current dataset
                self.give(Flight(-1, view.id, Task(0, call), is_call=True), -1)

    def oldest(self, worker: int | None) -> Flight:
        """Return the earliest assigned task of a worker, or (None) of all workers; there must be one."""
        first = [
            next(iter(flights.values())) for flights in (self.of if worker is None else [self.of[worker]]) if flights
        ]
        return min(first, key=operator.attrgetter("given_s"))
