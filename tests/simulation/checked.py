"""A loader in virtual time that checks the laws, and does what training loops do besides taking batches."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from typing import Any

from feedline.abc.scheduler import Scheduler
from feedline.delivery.machine.epoch import Epoch
from feedline.delivery.state import Snapshot
from feedline.errors import WorkerError
from feedline.simulation import LawBroken, Scenario, World
from feedline.simulation.dataset import NotReady
from feedline.simulation.engine import Trace
from feedline.simulation.scenario import IN_ORDER, OWN
from feedline.simulation.worker import Worker
from feedline.types import Call, Result, ResultKind, Share, State, Task
from tests.simulation.laws import Books

_MOST_DEATHS = 60
"""Maximum deaths of workers until a killing sample is found. Batches of 8 with two retries take about 30."""


class CheckedWorld(World):
    """A world that checks the laws of its bookkeeping after every event, and can save its state and be resized."""

    def __init__(
        self,
        scenario: Scenario,
        workers: int,
        share: Share,
        trace: Trace,
        dice: random.Random,
        *,
        scheduler: Scheduler | None = None,
        most_workers: int | None = None,
    ) -> None:
        super().__init__(scenario, workers, share, trace, dice, scheduler=scheduler, most_workers=most_workers)
        self.wait_s = 0.0
        """How long the training loop has waited for batches."""
        self._death: Exception | None = None
        """The error that closed the loader while its state was being saved; the next call of `next` raises it."""
        accidents, fatal = scenario.accidents, len(scenario.troubles.fatal)
        is_calm = not (accidents.blames or accidents.death_at_start or accidents.killed_at_start or accidents.stop)
        most_deaths = _MOST_DEATHS * fatal if is_calm and not scenario.remaps else math.inf
        self.books = Books(self.machine, self.slots, self.workers, self.counters, scenario.restarts, most_deaths)
        self._keeps_shares = (
            not scenario.moves and scenario.kind != OWN and scenario.order == IN_ORDER and len(self.workers) == workers
        )
        self.early: tuple[int, ...] = ()
        """Batches of this epoch that were delivered out of turn before the epoch was resumed."""
        self._reports = 0
        self._taken: set[int] = set()
        """Batches whose tasks were taken back from workers that go on."""

    # -- the training loop -------------------------------------------------------------------------------------------

    def begin(self, number: int, snapshot: Snapshot | None = None) -> None:
        self.early = () if snapshot is None else snapshot.early
        super().begin(number, snapshot)

    def begin_epoch(self, epoch: Epoch) -> None:
        self.books.epoch_deaths = 0
        self.books.ran_ahead = self.counters.run_ahead
        self.books.last_event_s = self.now_s
        super().begin_epoch(epoch)

    # Any: a batch of the simulated dataset.
    def next(self) -> tuple[Any, int]:
        if self._death is not None:
            raise self._death
        self.books.last_event_s = self.now_s
        return super().next()

    def _hand_out(self, epoch: Epoch, ordinal: int) -> tuple[object, int]:
        self.wait_s += self.now_s - self._asked_s
        return super()._hand_out(epoch, ordinal)

    def call(self, *, fails: bool) -> None:
        """Call a method of the dataset in every worker."""
        number = len(self.dataset.calls)
        self.dataset.calls.append(number)
        self.trace.add(self.now_s, "call", number, fails)
        self.broadcast(Call("note", (number,), {"fails": fails}))

    def resize(self) -> None:
        """Change to a random number of workers."""
        count = self.dice.randint(1, len(self.workers))
        self.trace.add(self.now_s, "resize", count)
        self._flights.now_s = self.now_s
        self.books.note_surplus()
        self.machine.crew.resize(count)
        self._perform()

    def state(self) -> State | None:
        """Return the state of the loader; None if workers have not reported the states in which they began."""
        epoch = self.epoch
        if epoch.openings.awaited and not self.closed:
            try:
                self.await_openings()
            except (WorkerError, NotReady) as exc:  # a loader would raise it here
                closed: bool = vars(self)["closed"]  # `await_openings` may have closed it
                self._death = exc if closed else None
        if epoch.openings.awaited and not epoch.openings.assume():
            return None
        assert self.checkpoint is not None
        return {**self.checkpoint.snapshot().as_dict(), "faults": self.fault_budget.state()}

    def restore(self, number: int, state: dict[str, object]) -> None:
        """Resume an epoch from the state of another loader."""
        self.fault_budget.restore(state["faults"])
        self.begin(number, Snapshot.from_dict({name: value for name, value in state.items() if name != "faults"}))

    def lose(self, workers: Iterable[int]) -> None:
        """Kill workers at once, as if the machine they run on were lost."""
        self.books.most_deaths = math.inf
        for worker in workers:
            self.engine.kill(worker)

    # -- events and decisions ----------------------------------------------------------------------------------------

    def _collect(self, pause_s: float | None, worker: int | None) -> None:
        reading_s = max(self.engine.alive_s(one.number) for one in self.workers)
        self.books.last_event_s = max(self.books.last_event_s, reading_s)
        if pause_s != 0.0:  # a pause of 0 only polls
            self.books.check_wait(worker)
        before = self._reports
        super()._collect(pause_s, worker)
        if self._reports > before and not self.machine.decisions:
            self.books.check()

    def _report(self, worker: Worker | None, result: Result) -> None:
        self._reports += 1
        self.books.last_event_s = self.now_s
        if result.kind is ResultKind.DIED:
            assert worker is not None
            is_missed = worker.number not in self.machine.flights.absent
            self.books.deaths += is_missed
            self.books.epoch_deaths += is_missed
        super()._report(worker, result)

    def _perform(self) -> None:
        super()._perform()
        self.books.check()
        waiting = {flight.ordinal for flights in self._flights.parked.values() for flight in flights}
        if not self.closed and self._taken - waiting:
            raise LawBroken(f"batches {sorted(self._taken - waiting)} were taken back, and no other worker gets them")

    def _give(self, worker: int, task: Task) -> None:
        self._taken.discard(self._flights.of[worker][task.id].ordinal)  # also if it cannot be sent
        super()._give(worker, task)

    def _given(self, worker: int, task: Task) -> int:
        ordinal = super()._given(worker, task)
        self._taken.discard(ordinal)
        if self._keeps_shares and type(task.indices) is not Call:
            self.books.check_owner(worker, ordinal)
        return ordinal

    def _revoke(self, worker: int, count: int | None) -> list[int]:
        taken = super()._revoke(worker, count)
        one, epoch = self.workers[worker], self._flights.epoch
        is_free = epoch is not None and epoch.limits.takes_back
        if not (one.is_leaving or one.is_dead or is_free):
            self._taken.update(self._flights.of[worker][task_id].ordinal for task_id in taken)
        return taken
