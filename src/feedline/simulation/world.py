"""A loader in virtual time: the real machine and driver with simulated workers and a simulated clock.

Instead of waiting, it advances its clock to the next event. Nothing reads a real clock or starts a process, and
everything random follows from the scenario's seed, so two runs of a scenario are the same.
"""

from __future__ import annotations

from typing import Any

from feedline.abc.scheduler import Scheduler
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.config import Config
from feedline.delivery.driver.batches import new_epoch
from feedline.delivery.driver.driver import Driver
from feedline.delivery.driver.slots import Slots
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.machine import DEEP, Machine
from feedline.delivery.machine.recovery import Recovery
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.frameworks.numpy import NumpyFramework
from feedline.order.order import Entry, SampleOrder
from feedline.randomness.keys import epoch_key
from feedline.samplers import SequentialSampler
from feedline.schedulers import InOrder, Unordered
from feedline.simulation.engine import TICK_S, SimulatedEngine
from feedline.simulation.scenario import IN_ORDER, LawBroken, Scenario
from feedline.types import DatasetKind, Key, Result, ResultKind

_MOST_IDLE = 10_000
"""Maximum turns of the machine during which no time passes."""


class World(Driver):
    """A loader in a simulated world. You are the training loop: take batches, and say how long each step takes.

    Args:
        scenario: what is simulated.
        scheduler: assigns batches to workers; default: the one that the scenario asks for.

    Example:
        >>> from feedline.simulation import Scenario, World
        >>> world = World(Scenario(samples=64, batch_size=8, workers=2, batch_s=(0.2,), start_s=0.0))
        >>> world.begin()
        >>> batch = world.next()
        >>> batch, world.now_s
        ([0, 1, 2, 3, 4, 5, 6, 7], 0.2)
        >>> world.close()
    """

    engine: SimulatedEngine

    def __init__(self, scenario: Scenario, *, scheduler: Scheduler | None = None) -> None:
        self.scenario = scenario
        self.delivered = Result(ResultKind.ENDED, -1, -1)
        """The last result delivered, as its worker sent it."""
        batch_size, workers = scenario.batch_size, scenario.workers
        self._order = SampleOrder(SequentialSampler(range(scenario.samples)), batch_size, drop_last=False)
        self._settings = Config(
            worker_count=workers,
            engine="process",
            depth=scenario.depth,
            persistent=True,
            seed=0 if scenario.moves else None,
            scheduler=_scheduler_of(scenario) if scheduler is None else scheduler,
        )
        framework = NumpyFramework()
        self._spec = WorkerSpec(
            dataset=range(scenario.samples),
            kind=DatasetKind.MAP,
            collate=list,
            framework=framework,
            worker_count=workers,
            base_seed=0,
            batched=batch_size is not None,
        )
        engine = SimulatedEngine(scenario)
        slots = _Messages(None, framework, Counters())
        machine = Machine(workers, slots, Recovery(), slots.counters)
        super().__init__(engine, machine, slots, clock=engine.clock)
        engine.ordinal_of = lambda worker, task_id: self._flights.of[worker][task_id].ordinal
        self._idle = 0
        """Turns of the machine since time last passed."""
        self._turned_s = 0.0

    @property
    def now_s(self) -> float:
        """The virtual time."""
        return self.engine.now_s

    def begin(self, number: int = 0) -> None:
        """Start an epoch; one that is under way is left."""
        machine, order, seed = self.machine, self._order, self.scenario.seed
        if machine.flights.epoch is not None:
            self.leave_epoch()
        entry = Entry(Key(seed, number), epoch_key(seed, number), {})
        checkpoint = Checkpoint(
            order,
            entry,
            seed,
            self.scenario.workers,
            self.scenario.batch_size or 1,
            keeps_dataset=True,
            keeps_last=False,
        )
        self.begin_epoch(new_epoch(machine, self._settings, self._spec, checkpoint, None))

    # Any: a batch is the list of its indices; without a batch size, it is one index.
    def next(self) -> Any:
        """Return the next batch.

        Raises:
            StopIteration: the epoch is over.
            LawBroken: something happened that must not, or nothing can happen any more.
            Exception: whatever a loader would raise.
        """
        self._idle = 0
        return super().next()

    def pass_time(self, seconds: float) -> None:
        """Advance the clock without requesting a batch."""
        self.engine.now_s += seconds

    def _unpack(self, result: Result) -> object:
        self.delivered = result
        return super()._unpack(result)

    def _collect(self, pause_s: float | None, worker: int | None) -> None:
        """Advance to the next event or to the end of the pause, and report what happened to the machine."""
        self._turn()
        results = self.engine.collect(pause_s, worker)
        self._flights.now_s = self.now_s
        for result in results:
            self.machine.answered(result)

    def _perform(self) -> None:
        self._turn()
        super()._perform()

    def _turn(self) -> None:
        """Check that time passes."""
        self._idle = 0 if self.now_s > self._turned_s + 2 * TICK_S else self._idle + 1
        self._turned_s = self.now_s
        if self._idle > _MOST_IDLE:
            raise LawBroken("the loader is in an endless loop: no time passes, and nothing is delivered")


class _Messages(Slots):
    """Batches come in messages, several of which can wait for the training loop."""

    def fit_messages(self) -> int:
        return 3 * DEEP


def _scheduler_of(scenario: Scenario) -> Scheduler | None:
    """Return the scheduler of a scenario; None for the loader's default."""
    if scenario.order != IN_ORDER:
        return Unordered()
    return None if scenario.deepens and scenario.depth == 2 else InOrder()
