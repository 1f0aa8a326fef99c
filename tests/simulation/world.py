"""A loader in virtual time: the real machine and driver with simulated workers, slots and clock.

Instead of waiting, it advances its clock to the next event. After every event, it checks the laws of its bookkeeping.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from typing import Any

from feedline.abc.scheduler import Scheduler
from feedline.abc.stateful import is_stateful
from feedline.delivery.config import Config
from feedline.delivery.driver.batches import new_epoch
from feedline.delivery.driver.driver import Driver
from feedline.delivery.machine.epoch import Epoch
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.recovery import Recovery
from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.order.order import Entry, Order
from feedline.randomness.keys import epoch_key
from feedline.simulation.engine import TICK_S
from feedline.simulation.scenario import IN_ORDER, LawBroken
from feedline.system.ranks import Share
from feedline.types import Call, Key, Result, ResultKind, State, Task
from tests.simulation.dataset import NotSent, RemappedItems, dataset_of
from tests.simulation.engine import SimulatedEngine, Trace
from tests.simulation.laws import Books
from tests.simulation.scenario import MAP, OWN, Scenario
from tests.simulation.scheduler import order_of, scheduler_of
from tests.simulation.slots import CountedSlots
from tests.simulation.worker import Worker, spec_of

_MOST_IDLE = 10_000
"""Maximum turns of the machine during which no time passes."""

_MOST_DEATHS = 60
"""Maximum deaths of workers until a killing sample is found. Batches of 8 with two retries take about 30."""


class World(Driver):
    """The loader of one rank in a simulated world. It can save its state and be resized.

    Args:
        scenario: what is simulated.
        workers: number of workers at the start.
        share: the rank of this loader, and the number of ranks.
        trace: where events are recorded.
        dice: the source of all randomness.
        scheduler: assigns batches to workers; default: the one that the scenario asks for.
        most_workers: maximum number of workers; default: as many as at the start.
    """

    engine: SimulatedEngine

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
        self.scenario = scenario
        self.share = share
        self.trace = trace
        self.dice = dice
        self.fault_budget = FaultBudget(scenario.policy)
        self.dataset = dataset_of(scenario)
        self.order: Order = order_of(scenario, share)
        self.slots = CountedSlots(scenario.slots, scenario.slot_bytes, scenario.budget_bytes)
        self.checkpoint: Checkpoint | None = None
        self.raised: BaseException | None = None
        """The last exception raised instead of a batch. All other exceptions concern the loader itself."""
        self.on_hand_out: Callable[[int, int, object], None] = lambda ordinal, worker, batch: None
        self._settings = Config(
            worker_count=workers,
            engine="process",
            depth=scenario.depth,
            timeout_s=scenario.timeout_s,
            persistent=scenario.persistent,
            seed=scenario.seed if scenario.moves else None,
            memory_budget=scenario.budget_bytes,
            restarts=scenario.restarts if scenario.kills_stuck else None,
            snapshot_every=3 if scenario.stateful else 0,
            scheduler=scheduler_of(scenario, random.Random(dice.random())) if scheduler is None else scheduler,
        )
        most = workers if most_workers is None else most_workers
        self._spec = spec_of(scenario, self.dataset, most, share)
        engine = SimulatedEngine(scenario, self._spec, self.slots, dice, workers, trace)
        recovery = Recovery(
            scenario.policy,
            self.dataset,
            self._spec.batched,
            searches=not is_stateful(self.dataset),
            restarts=scenario.restarts,
            wall_s=engine.clock,
            chance=dice.random,
        )
        machine = Machine(workers, self.slots, recovery, self.slots.counters, most=most)
        super().__init__(engine, machine, self.slots, clock=engine.clock)
        self.workers = engine.workers
        engine.on_given = self._given
        self._idle = 0
        """Turns of the machine since time last passed."""
        self._turned_s = 0.0
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

    @property
    def now_s(self) -> float:
        """The virtual time."""
        return self.engine.now_s

    # -- the training loop -------------------------------------------------------------------------------------------

    def begin(self, number: int, snapshot: Snapshot | None = None) -> None:
        """Start an epoch, or resume one from a snapshot."""
        machine, scenario = self.machine, self.scenario
        self.early = () if snapshot is None else snapshot.early
        if machine.flights.epoch is not None:
            self.leave_epoch()
        fault_budget = self.fault_budget
        fault_budget.keeps_steps = self.share.world_size > 1
        fault_budget.dataset = self.dataset if scenario.kind == MAP else None
        if isinstance(self.dataset, RemappedItems):
            self.dataset.set_epoch(number)
        fault_budget.begin_epoch(number, resumes=snapshot is not None)
        seed = self.order.seed_for(scenario.seed)
        assert seed is not None
        order = {} if snapshot is None else snapshot.order
        self.order.check(order)
        entry = Entry(Key(seed, number), epoch_key(scenario.seed, number), order)
        self.checkpoint = Checkpoint(
            self.order,
            entry,
            scenario.seed,
            len(self.workers),
            scenario.batch_size or 1,
            keeps_dataset=scenario.persistent,
            keeps_last=False,
        )
        self.trace.add(self.now_s, "epoch", number, order.get("consumed", 0))
        self.begin_epoch(
            new_epoch(machine, self._settings, self._spec, self.checkpoint, snapshot, fault_budget=fault_budget)
        )

    def begin_epoch(self, epoch: Epoch) -> None:
        self.books.epoch_deaths = 0
        self.books.ran_ahead = self.counters.run_ahead
        self.books.last_event_s = self.now_s
        super().begin_epoch(epoch)

    # Any: a batch of the simulated dataset.
    def next(self) -> tuple[Any, int]:
        """Return the next batch and its slot; -1 for no slot.

        Raises:
            StopIteration: the epoch is over.
            LawBroken: a law is broken.
            Exception: whatever a loader would raise.
        """
        if self._death is not None:
            raise self._death
        self.books.last_event_s = self.now_s
        self._idle = 0
        batch: tuple[object, int] = super().next()
        return batch

    def _hand_out(self, epoch: Epoch, ordinal: int) -> tuple[object, int]:
        worker = epoch.ready[ordinal].worker
        try:
            batch, slot = super()._hand_out(epoch, ordinal)
        except LawBroken:
            raise
        except BaseException as exc:
            self.raised = exc
            self.trace.add(self.now_s, "raised", ordinal, type(exc).__name__)
            self.on_hand_out(ordinal, worker, exc)
            raise
        self.trace.add(self.now_s, "delivered", ordinal, worker, batch)
        self.on_hand_out(ordinal, worker, batch)
        return batch, slot

    def pass_time(self, seconds: float) -> None:
        """Advance the clock without requesting a batch."""
        self.engine.now_s += seconds

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

    def state(self) -> State:
        """Return the state of the loader."""
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

    def _warn_pending(self) -> None:
        self.machine.crew.pending_warnings.clear()

    # -- events ------------------------------------------------------------------------------------------------------

    def _collect(self, pause_s: float | None, worker: int | None) -> None:
        """Advance to the next event or to the end of the pause, and report what happened to the machine."""
        reading_s = max(self.engine.alive_s(one.number) for one in self.workers)
        self.books.last_event_s = max(self.books.last_event_s, reading_s)
        if pause_s != 0.0:  # a pause of 0 only polls
            self.books.check_wait(worker)
        before = self._reports
        self._turn()
        answers = self.engine.collect_with_workers(
            self.scenario.timeout_s or None if pause_s is None else pause_s, worker
        )
        self._flights.now_s = self.now_s
        for answer in answers:
            self._report(*answer)
        if self.machine.crew.fatal is not None:
            self._give_up()
        if self._reports > before and not self.machine.decisions:
            self.books.check()

    def _report(self, worker: Worker | None, result: Result) -> None:
        """Report a worker's result to the machine."""
        machine = self.machine
        self._reports += 1
        self.books.last_event_s = self.now_s
        if result.kind is ResultKind.DIED:
            assert worker is not None
            is_missed = worker.number not in machine.flights.absent
            self.books.deaths += is_missed
            self.books.epoch_deaths += is_missed
            unbegun = self._revoke(worker.number, None)
            self.trace.add(self.now_s, "died", worker.number)
            machine.crew.died(worker.number, result.payload, unbegun)
            return
        self.trace.add(self.now_s, "answered", result.worker, result.task_id, result.kind.name)
        if worker is not None:
            worker.unreported -= 1
        machine.answered(result)
        growth = self.scenario.accidents.growth
        if worker is not None and growth and self.dice.random() < growth:
            self.trace.add(self.now_s, "grown", worker.number)
            # Others will be retired, unless a resize keeps them.
            worker.has_grown = worker.number < len(machine.flights.active)
            machine.crew.grown(worker.number)

    def _turn(self) -> None:
        """Check that time passes."""
        self._idle = 0 if self.now_s > self._turned_s + 2 * TICK_S else self._idle + 1
        self._turned_s = self.now_s
        if self._idle > _MOST_IDLE:
            raise LawBroken("the machine is in an endless loop: no time passes, and nothing is delivered")

    # -- decisions of the machine ------------------------------------------------------------------------------------

    def _perform(self) -> None:
        self._turn()
        super()._perform()
        self.books.check()
        waiting = {flight.ordinal for flights in self._flights.parked.values() for flight in flights}
        if not self.closed and self._taken - waiting:
            raise LawBroken(f"batches {sorted(self._taken - waiting)} were taken back, and no other worker gets them")

    def _give(self, worker: int, task: Task) -> None:
        self._taken.discard(self._flights.of[worker][task.id].ordinal)  # also if it cannot be sent
        not_sent = self.scenario.accidents.not_sent
        if not_sent and type(task.indices) is not Call and self.dice.random() < not_sent:
            self.machine.crew.not_given(worker, task.id, NotSent("indices that cannot be sent"))
        else:
            super()._give(worker, task)

    def _given(self, worker: int, task: Task) -> int:
        """Record a task that a worker gets; return the number of its batch."""
        self.trace.add(self.now_s, "give", worker, task.id, task.slot)
        ordinal = self._flights.of[worker][task.id].ordinal
        self._taken.discard(ordinal)
        if self._keeps_shares and type(task.indices) is not Call:
            self.books.check_owner(worker, ordinal)
        return ordinal

    def _revoke(self, worker: int, count: int | None) -> list[int]:
        taken = super()._revoke(worker, count)
        one, epoch = self.workers[worker], self._flights.epoch
        one.is_leaving = one.has_grown
        self.trace.add(self.now_s, "taken back", worker, taken)
        is_free = epoch is not None and epoch.limits.takes_back
        if not (one.is_leaving or one.is_dead or is_free):
            self._taken.update(self._flights.of[worker][task_id].ordinal for task_id in taken)
        return taken
