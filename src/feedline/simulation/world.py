"""A loader in virtual time: the real machine and driver with simulated workers, slots and clock.

Instead of waiting, it advances its clock to the next event.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

from feedline.abc.scheduler import Scheduler
from feedline.abc.stateful import is_stateful
from feedline.delivery.driver.batches import new_epoch
from feedline.delivery.driver.driver import Driver
from feedline.delivery.driver.settings import Settings
from feedline.delivery.machine.epoch import Epoch
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.recovery import Recovery, RecoveryOptions
from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.order.order import Entry, Order
from feedline.randomness.keys import epoch_key
from feedline.simulation.dataset import NotSent, RemappedItems, dataset_of
from feedline.simulation.engine import TICK_S, SimulatedEngine, Trace
from feedline.simulation.scenario import MAP, LawBroken, Scenario
from feedline.simulation.scheduler import order_of, scheduler_of
from feedline.simulation.slots import CountedSlots
from feedline.simulation.worker import Worker, spec_of
from feedline.types import Call, Key, Result, ResultKind, Share, Task

_MOST_IDLE = 10_000
"""Maximum turns of the machine during which no time passes."""


class World(Driver):
    """The loader of one rank in a simulated world.

    Args:
        scenario: what is simulated.
        workers: number of workers at the start.
        share: the rank of this loader, and the number of ranks.
        trace: where events are recorded.
        dice: the source of all randomness.
        scheduler: assigns batches to workers; default: the one that the scenario asks for.
        most_workers: maximum number of workers; default: as many as at the start.

    Example:
        >>> from feedline.simulation.engine import Trace
        >>> scenario = Scenario(samples=64, batch_size=8, workers=2, batch_s=(0.2,), start_s=0.0)
        >>> world = World(scenario, scenario.workers, Share(), Trace(), random.Random(0))
        >>> world.begin(0)
        >>> batch, slot = world.next()
        >>> batch, world.now_s
        ([0, 1, 2, 3, 4, 5, 6, 7], 0.2)
        >>> world.close()
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
        self.delivered = Result(ResultKind.ENDED, -1, -1)
        """The last result delivered, as its worker sent it."""
        self.on_hand_out: Callable[[int, int, object], None] = lambda ordinal, worker, batch: None
        self._settings = Settings(
            workers,
            "process",
            depth=scenario.depth,
            timeout_s=scenario.timeout_s,
            persistent=scenario.persistent,
            seeded=scenario.moves,
            memory_budget=scenario.budget_bytes,
            restarts=scenario.restarts if scenario.kills_stuck else None,
            scheduler=scheduler_of(scenario, random.Random(dice.random())) if scheduler is None else scheduler,
        )
        most = workers if most_workers is None else most_workers
        self._spec = spec_of(scenario, self.dataset, most, share)
        engine = SimulatedEngine(scenario, self._spec, self.slots, dice, workers, trace)
        options = RecoveryOptions(
            scenario.policy,
            self.dataset,
            self._spec.batched,
            searches=not is_stateful(self.dataset),
            restarts=scenario.restarts,
            wall_s=engine.clock,
            chance=dice.random,
        )
        machine = Machine(workers, self.slots, Recovery(options), self.slots.counters, moves=scenario.moves, most=most)
        super().__init__(engine, machine, self.slots, clock=engine.clock)
        self.workers = engine.workers
        engine.on_given = self._given
        self._idle = 0
        """Turns of the machine since time last passed."""
        self._turned_s = 0.0

    @property
    def now_s(self) -> float:
        """The virtual time."""
        return self.engine.now_s

    # -- the training loop -------------------------------------------------------------------------------------------

    def begin(self, number: int, snapshot: Snapshot | None = None) -> None:
        """Start an epoch, or resume one from a snapshot."""
        machine, scenario = self.machine, self.scenario
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
            entry,
            self.order.plan(entry),
            self.order.unit,
            functools.cache(self.order.expected),
            scenario.seed,
            len(self.workers),
            scenario.batch_size or 1,
            stride=self.order.stride(),
            keeps_dataset=scenario.persistent,
            keeps_last=False,
        )
        self.trace.add(self.now_s, "epoch", number, order.get("consumed", 0))
        self.begin_epoch(
            new_epoch(machine, self._settings, self._spec, self.checkpoint, snapshot, fault_budget=fault_budget)
        )

    # Any: a batch of the simulated dataset.
    def next(self) -> tuple[Any, int]:
        """Return the next batch and its slot; -1 for no slot.

        Raises:
            StopIteration: the epoch is over.
            LawBroken: a law is broken.
            Exception: whatever a loader would raise.
        """
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

    def _unpack(self, result: Result) -> object:
        self.delivered = result
        return super()._unpack(result)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock without requesting a batch."""
        self.engine.now_s += seconds

    def _warn_pending(self) -> None:
        self.machine.crew.pending_warnings.clear()

    # -- events ------------------------------------------------------------------------------------------------------

    def _collect(self, pause_s: float | None, worker: int | None) -> None:
        """Advance to the next event or to the end of the pause, and report what happened to the machine."""
        self._turn()
        answers = self.engine.collect_with_workers(
            self.scenario.timeout_s or None if pause_s is None else pause_s, worker
        )
        self._flights.now_s = self.now_s
        for answer in answers:
            self._report(*answer)
        if self.machine.crew.fatal is not None:
            self._give_up()

    def _report(self, worker: Worker | None, result: Result) -> None:
        """Report a worker's result to the machine."""
        machine = self.machine
        if result.kind is ResultKind.DIED:
            assert worker is not None
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

    def _give(self, worker: int, task: Task) -> None:
        not_sent = self.scenario.accidents.not_sent
        if not_sent and type(task.indices) is not Call and self.dice.random() < not_sent:
            self.machine.crew.not_given(worker, task.id, NotSent("indices that cannot be sent"))
        else:
            super()._give(worker, task)

    def _given(self, worker: int, task: Task) -> int:
        """Record a task that a worker gets; return the number of its batch."""
        self.trace.add(self.now_s, "give", worker, task.id, task.slot)
        return self._flights.of[worker][task.id].ordinal

    def _revoke(self, worker: int, count: int | None) -> list[int]:
        taken = super()._revoke(worker, count)
        self.workers[worker].is_leaving = self.workers[worker].has_grown
        self.trace.add(self.now_s, "taken back", worker, taken)
        return taken
