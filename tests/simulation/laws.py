"""The laws of delivery that concern the machine's bookkeeping. `expected` checks what is delivered.

- Each slot in use has one owner: a task in flight, a ready batch, or the training loop. No slot is lost.
- A worker has as many tasks as the machine believes, and no task is with two workers.
- No more batches are in flight than the window allows, apart from those started by running ahead, where nobody can see
  which batches a worker has made.
- While the machine waits for a worker, that worker has a task or an unreported answer.
- With a timeout, the machine does not wait for several timeouts without an answer, a death or an error.
- If batches may depend on their worker, worker i gets batch i mod n and no other.
- Every worker with a stream of its own has a part in every epoch, also in one that is left (`Worker`).
- A task that was taken back from a worker goes to another, unless the first is replaced or nobody can see it
  (`World`).
- Workers are replaced as often as they died, and no more often than the budget allows.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.lateness import RUN_AHEAD
from feedline.delivery.machine.machine import DEEP, Machine
from feedline.simulation.scenario import LawBroken
from tests.simulation.slots import CountedSlots
from tests.simulation.worker import Worker

_MANY = 16
"""Up to about this many workers, the bookkeeping is checked after every event; with more, less often."""

_MOST_TIMEOUTS = 3.0
"""Timeouts that may pass without news from any worker: one until a worker is replaced, and another for its replacement,
which has two more seconds to start.
"""


@dataclass
class Books:
    """The machine's bookkeeping, and the facts to compare it with."""

    machine: Machine
    slots: CountedSlots
    workers: list[Worker]
    counters: Counters
    restarts: int
    """Maximum number of workers replaced in an epoch."""
    most_deaths: float = math.inf
    """Maximum deaths in an epoch before the killing samples are found, if there are no accidents."""
    deaths: int = 0
    """Workers that died and were replaced."""
    epoch_deaths: int = 0
    """Workers that died and were replaced in the current epoch."""
    ran_ahead: int = 0
    """`counters.run_ahead` at the start of the epoch."""

    surplus: int = 0
    """Batches under way when the number of workers last changed. That many may stay under way even if the window became
    smaller, until their number falls.
    """

    last_event_s: float = 0.0
    """When a worker last answered, died or read a sample again, or a batch was requested."""

    _skipped: int = 0

    def note_surplus(self) -> None:
        """Record how many batches are under way, before the number of workers changes."""
        epoch = self.machine.flights.epoch
        self.surplus = 0 if epoch is None else len(epoch.in_flight) + len(epoch.ready)

    def check(self) -> None:
        """Check the laws that hold whenever the machine has handled a report and has no decision left to make.

        Checking the bookkeeping of many workers is slow, so with many of them only every n-th event is checked.
        """
        self._skipped += 1
        if self._skipped * _MANY < len(self.workers) + sum(map(len, self.machine.flights.of)) // 4:
            return
        self._skipped = 0
        _check_slots(self)
        _check_tasks(self)
        _check_window(self)
        _check_restarts(self)

    def check_owner(self, worker: int, ordinal: int) -> None:
        """Check that a worker gets a batch of its own share."""
        flights = self.machine.flights
        assert flights.epoch is not None
        own = (ordinal + flights.epoch.progress.turn) % len(flights.active)
        if worker != own:
            raise LawBroken(f"worker {worker} is given batch {ordinal}, which belongs to worker {own}")

    def check_wait(self, worker: int | None) -> None:
        """Check that something can happen while the machine waits, for `worker` or (None) for any worker."""
        waits_for = self.workers if worker is None else [self.workers[worker]]
        if not any(one.queue or one.unreported for one in waits_for):
            whom = "any worker" if worker is None else f"worker {worker}"
            raise LawBroken(f"the machine waits for {whom}, but nothing can happen")
        epoch = self.machine.flights.epoch
        timeout_s = 0.0 if epoch is None else epoch.limits.timeout_s
        silent_s = self.machine.flights.now_s - self.last_event_s
        if timeout_s and silent_s > _MOST_TIMEOUTS * timeout_s:
            raise LawBroken(f"no worker has answered or died for {silent_s:.0f} s, but the machine still waits")


def _check_slots(books: Books) -> None:
    machine, slots = books.machine, books.slots
    if not slots.count:
        return
    owners: Counter[int] = Counter()
    seen: set[int] = set()
    for flight in machine.flights:
        requested = flight.requested
        if id(requested) not in seen:
            seen.add(id(requested))
            owners[requested.task.slot] += 1
    epoch = machine.flights.epoch
    for result in [] if epoch is None else epoch.ready.values():
        owners[getattr(result.payload, "slot", -1)] += 1
    owners.update(slots.held.keys())
    del owners[-1]
    for slot, count in owners.items():
        if count > 1:
            raise LawBroken(f"slot {slot} has {count} owners")
    if owners.keys() != slots.used:
        lost, strange = slots.used - owners.keys(), owners.keys() - slots.used
        raise LawBroken(
            f"slots {sorted(lost)} are lost" if lost else f"slots {sorted(strange)} were released too early"
        )


def _check_tasks(books: Books) -> None:
    flights = books.machine.flights
    for view, worker in zip(flights.workers, books.workers, strict=True):
        parked = flights.parked.get(view.id, ())
        known = worker.outstanding + len(parked)
        if not view.outstanding == len(flights.of[view.id]) + len(parked) == known:
            raise LawBroken(f"worker {view.id} has {known} tasks, but the machine counts {view.outstanding}")
    given = Counter(task.id for worker in books.workers for task in worker.queue)
    twice = [task_id for task_id, count in given.items() if count > 1]
    if twice:
        raise LawBroken(f"task {twice[0]} is with two workers")


def _check_window(books: Books) -> None:
    epoch = books.machine.flights.epoch
    if epoch is None or epoch.exhausted:
        return
    window = epoch.limits.window
    under_way = len(epoch.in_flight) + len(epoch.ready)
    usual = window * (DEEP if epoch.deepens else 1)
    ahead = books.counters.run_ahead - books.ran_ahead
    books.surplus = min(books.surplus, under_way)
    usual = max(usual, books.surplus)
    if ahead and not epoch.limits.runs_ahead:
        raise LawBroken("work beyond the window is with workers that live on, and that may see it")
    if under_way > min(usual + ahead, max(usual, window * RUN_AHEAD)):
        raise LawBroken(f"{under_way} batches are under way; the window is {window}, with {ahead} started beyond it")


def _check_restarts(books: Books) -> None:
    if books.counters.restarts != books.deaths:
        raise LawBroken(f"{books.deaths} workers died, but {books.counters.restarts} restarts were counted")
    if books.epoch_deaths > books.most_deaths:
        raise LawBroken(f"{books.epoch_deaths} workers died in an epoch, but the samples that kill are not found")
    if books.epoch_deaths > books.restarts:
        raise LawBroken(f"{books.epoch_deaths} workers were replaced in an epoch; restarts={books.restarts}")
