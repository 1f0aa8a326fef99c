"""One loader in virtual time: the real machine, and workers, slots and a clock that are not.

This is the other driver: it does what the machine decides, as the loader's own one does; instead of waiting, it moves
its clock to the next thing that happens.
"""

from __future__ import annotations

import functools
import math
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from feedline.abc.scheduler import Scheduler
from feedline.abc.stateful import is_stateful
from feedline.core.counters import Counters
from feedline.core.decisions import FORGET, GIVE, RETIRE, START, TAKE_BACK
from feedline.core.epoch import Epoch
from feedline.core.fault_budget import FaultBudget
from feedline.core.machine import Machine
from feedline.core.recovery import Recovery, RecoveryOptions, Seen
from feedline.driver.batches import new_epoch
from feedline.driver.settings import Settings
from feedline.errors import WorkerError, WorkerStartError
from feedline.order.order import Entry, Order
from feedline.randomness.keys import epoch_key
from feedline.simulation.dataset import CallFailed, NotReady, NotSent, dataset_of
from feedline.simulation.engine import TICK_S, SimulatedEngine
from feedline.simulation.laws import Books
from feedline.simulation.scenario import MAP, LawBroken, Scenario
from feedline.simulation.scheduler import order_of, scheduler_of
from feedline.simulation.slots import CountedSlots
from feedline.simulation.worker import Worker, spec_of
from feedline.state import Snapshot
from feedline.state.checkpoint import Checkpoint
from feedline.types import Call, Key, Result, ResultKind, Share, Task

_MOST_IDLE = 10_000
"""Turns of the machine in which nothing happens and no time passes."""


_MOST_DEATHS = 60
"""Workers that die at most until a sample that kills is found. With batches of 8 and two retries it takes about 30."""


class Trace:
    """What happened, in order: the last of it as text, and a checksum of all."""

    def __init__(self, length: int = 400) -> None:
        self.lines: deque[str] = deque(maxlen=length)
        self.checksum = 0
        self.events = 0

    def add(self, now_s: float, what: str, *facts: object) -> None:
        """Note something."""
        self.events += 1
        line = f"{now_s:.6f} {what} {' '.join(map(str, facts))}"
        self.lines.append(line)
        self.checksum = zlib.crc32(line.encode(), self.checksum)


class World:
    """A loader of one rank, and all that it deals with.

    Args:
        scenario: what is simulated.
        workers: how many workers.
        share: which rank it is.
        trace: told what happens.
        dice: from which everything is drawn.
        scheduler: decides who works on what; as the scenario has it if not given.
    """

    def __init__(
        self,
        scenario: Scenario,
        workers: int,
        share: Share,
        trace: Trace,
        dice: random.Random,
        *,
        scheduler: Scheduler | None = None,
    ) -> None:
        self.scenario = scenario
        self.share = share
        self.wait_s = 0.0
        """How long the training loop has waited for batches."""
        self.trace = trace
        self.dice = dice
        self.fault_budget = FaultBudget(scenario.policy)
        self.dataset = dataset_of(scenario)
        self.order: Order = order_of(scenario, share)
        self.slots = CountedSlots(scenario.slots, scenario.slot_bytes, scenario.budget_bytes)
        self.counters = Counters()
        self.warnings: list[str] = []
        self.closed = False
        self._death: Exception | None = None
        """What ended everything while a state was asked for: whoever asks for the next batch is told."""
        self.checkpoint: Checkpoint | None = None
        self.raised: BaseException | None = None
        """What came last instead of a batch. What else a loader raises is about the loader itself."""
        self.delivered: Result | None = None
        """What was delivered last, as its worker has answered."""
        self.on_hand_out: Callable[[int, int, Any], None] = lambda ordinal, worker, batch: None
        self._settings = Settings(
            workers,
            "process",
            depth=scenario.depth,
            timeout_s=scenario.timeout_s,
            restarts=scenario.restarts if scenario.kills_stuck else None,
            scheduler=scheduler_of(scenario, random.Random(dice.random())) if scheduler is None else scheduler,
        )
        most = workers + scenario.most_workers - scenario.workers
        self._spec = spec_of(scenario, self.dataset, most, share)
        options = RecoveryOptions(
            scenario.policy,
            self.dataset,
            self._spec.batched,
            searches=not is_stateful(self.dataset),
            restarts=scenario.restarts,
            wall_s=lambda: self.now_s,
            chance=dice.random,
        )
        self.machine = Machine(workers, self.slots, Recovery(options), self.counters, most=most)
        self._engine = SimulatedEngine(scenario, self._spec, self.slots, dice, workers)
        self.workers = self._engine.workers
        accidents, fatal = scenario.accidents, len(scenario.troubles.fatal)
        most_deaths = math.inf if accidents.blames or accidents.death_at_start else _MOST_DEATHS * fatal
        self.books = Books(self.machine, self.slots, self.workers, self.counters, scenario.restarts, most_deaths)
        self.early: tuple[int, ...] = ()
        """Batches of the epoch that had been delivered before it was entered."""

    @property
    def now_s(self) -> float:
        """The time."""
        return self._engine.now_s

    # -- the training loop -------------------------------------------------------------------------------------------

    def begin(self, number: int, snapshot: Snapshot | None = None) -> None:
        """Begin an epoch, or the rest of one."""
        machine, scenario = self.machine, self.scenario
        if machine.epoch is not None:
            machine.leave_epoch()
            self.perform()
            machine.passes += 1
        fault_budget = self.fault_budget
        fault_budget.keeps_steps = self.share.world_size > 1
        fault_budget.dataset = self.dataset if scenario.kind == MAP else None
        fault_budget.begin_epoch(resumes=snapshot is not None)
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
        self.early = () if snapshot is None else snapshot.early
        self.books.epoch_deaths = 0
        self.books.ran_ahead = self.counters.run_ahead
        self.trace.add(self.now_s, "epoch", number, order.get("consumed", 0))
        epoch = new_epoch(machine, self._settings, self._spec, self.checkpoint, snapshot, fault_budget=fault_budget)
        machine.now_s = self.now_s
        machine.begin(epoch)
        self.perform()

    @property
    def epoch(self) -> Epoch:
        """The epoch that is gone through, or was."""
        assert self.machine.epoch is not None
        return self.machine.epoch

    def next(self) -> tuple[Any, int]:
        """Return the next batch, and the slot in which it lies; -1 for none.

        Raises:
            StopIteration: the epoch is over.
            LawBroken: something is wrong.
            Exception: what a loader would raise.
        """
        if self._death is not None:
            raise self._death
        machine, began_s, idle = self.machine, self.now_s, 0
        machine.now_s = self.now_s
        machine.ask()
        if machine.holds_back:
            self._collect(0.0, None)
            self._give_held()
        while True:
            self._speak()
            ordinal = machine.take()
            if ordinal >= 0:
                self.wait_s += self.now_s - began_s
                return self._hand_out(ordinal)
            before_s = self.now_s
            if not machine.decisions:
                pause_s, worker = machine.wait()
                if not machine.decisions:
                    self._collect(pause_s, worker)
                    machine.judge_lateness()
            if machine.decisions or machine.fatal is not None:
                self.perform()
            if machine.holds_back:
                self._give_held()
            idle = 0 if self.now_s > before_s + 2 * TICK_S else idle + 1
            if idle > _MOST_IDLE:
                raise LawBroken("the machine goes round in circles: no time passes, and nothing is delivered")

    def _give_held(self) -> None:
        self.perform()
        self.machine.fill()
        self.perform()

    def _hand_out(self, ordinal: int) -> tuple[Any, int]:
        machine, epoch = self.machine, self.epoch
        result = self.delivered = epoch.pop(ordinal)
        worker, notes, read = result.worker, result.notes, result.read
        try:
            try:
                told = None if notes is None else epoch.look_at(notes)
                if told is not None:
                    self.warnings.append(told[0])
                batch, slot = self._unpack(result)
            except BaseException:
                self.slots.discard(result)
                raise
            finally:
                machine.handed_out(worker)
                self.perform()
        except LawBroken:
            raise
        except BaseException as exc:
            epoch.note(ordinal, worker, notes, read)
            epoch.progress.missing += 1
            self.raised = exc
            self.trace.add(self.now_s, "raised", ordinal, type(exc).__name__)
            self.on_hand_out(ordinal, worker, exc)
            raise
        epoch.note(ordinal, worker, notes, read)
        self.trace.add(self.now_s, "delivered", ordinal, worker, batch)
        self.on_hand_out(ordinal, worker, batch)
        return batch, slot

    def _unpack(self, result: Result) -> tuple[Any, int]:
        if result.kind is ResultKind.FAILED:
            raise result.payload
        self.counters.batches += 1
        return self.slots.unpack(result.payload)

    def call(self, *, fails: bool) -> None:
        """Have a method of the dataset called in every worker."""
        number = len(self.dataset.calls)
        self.dataset.calls.append(number)
        self.trace.add(self.now_s, "call", number, fails)
        self.machine.now_s = self.now_s
        self.machine.call(Call("note", (number,), {"fails": fails}))
        self.perform()

    def resize(self) -> None:
        """Have more or fewer workers."""
        count = self.dice.randint(1, len(self.workers))
        self.trace.add(self.now_s, "resize", count)
        self.machine.now_s = self.now_s
        self.books.note_surplus()
        self.machine.resize(count)
        self.perform()

    def state(self) -> dict[str, Any] | None:
        """Return where the loader is; None if that cannot be told, because workers did not tell how they began."""
        epoch = self.epoch
        if not (epoch.is_opened() or self.closed):
            try:
                self._await_openings()
            except (WorkerError, CallFailed, NotReady) as exc:  # a loader would raise it here
                self._death = exc if self.machine.fatal is exc else None
        if not epoch.is_opened() and not epoch.assume_openings():
            return None
        assert self.checkpoint is not None
        return {**self.checkpoint.snapshot().as_dict(), "faults": self.fault_budget.state()}

    def _await_openings(self) -> None:
        machine = self.machine
        machine.now_s = self.now_s
        machine.ask()
        while machine.await_openings():
            if not machine.decisions:
                self._collect(self.scenario.timeout_s or None, None)
            self.perform()
            self._speak()

    def restore(self, number: int, state: dict[str, Any]) -> None:
        """Go on with an epoch from a state that another loader has told."""
        self.fault_budget.restore(state["faults"])
        self.begin(number, Snapshot.from_dict({name: value for name, value in state.items() if name != "faults"}))

    def lose(self, workers: Iterable[int]) -> None:
        """Let workers die at once: the machine that they are on is lost."""
        self.books.most_deaths = math.inf
        for worker in workers:
            self.trace.add(self.now_s, "lost", worker)
            self._engine.kill(worker)

    def pass_time(self, seconds: float) -> None:
        """Let time pass in which the training loop asks for nothing."""
        self._engine.now_s += seconds

    def close(self) -> None:
        """End the workers."""
        if not self.closed:
            self.closed = True
            self.machine.close()
            self._engine.close()
            for slot in list(self.slots.held):
                self.slots.drop(slot)
            if self.slots.used:
                raise LawBroken(f"slots {sorted(self.slots.used)} are lost when everything is closed")

    def _speak(self) -> None:
        while self.machine.unsaid:
            self.warnings.append(self.machine.unsaid.pop(0)[0])

    # -- what happens ------------------------------------------------------------------------------------------------

    def _collect(self, pause_s: float | None, worker: int | None) -> None:
        """Go to the next thing that happens, or to the end of the pause, and tell the machine."""
        self.books.check_wait(worker)
        heard = self._engine.collect(pause_s, worker)
        self.machine.now_s = self.now_s
        for said in heard:
            self._tell(*said)
        if heard and not self.machine.decisions and self.machine.fatal is None:
            self.books.check()

    def _tell(self, worker: Worker | None, result: Result) -> None:
        """Tell the machine what a worker has said."""
        machine = self.machine
        if result.kind is ResultKind.DIED:
            assert worker is not None
            unbegun = self._engine.revoke(worker.number, None)
            self.trace.add(self.now_s, "died", worker.number, unbegun)
            is_missed = worker.number not in machine._absent
            self.books.deaths += is_missed
            self.books.epoch_deaths += is_missed
            machine.died(worker.number, result.payload, unbegun)
            return
        self.trace.add(self.now_s, "answered", result.worker, result.task_id, result.kind.name)
        if worker is not None:
            worker.unheard -= 1
        machine.answered(result)
        growth = self.scenario.accidents.growth
        if worker is not None and growth and self.dice.random() < growth:
            self.trace.add(self.now_s, "grown", worker.number)
            worker.has_grown = True
            machine.grown(worker.number)

    # -- what the machine decides ------------------------------------------------------------------------------------

    def perform(self) -> None:
        """Do what was decided, and tell the machine what came of it.

        Raises:
            BaseException: what a worker died of, if there is no going on.
        """
        machine = self.machine
        decisions = machine.decisions
        while decisions:
            what, worker, *rest = decisions.popleft()
            if what is GIVE:
                self._give(worker, rest[0])
            elif what is TAKE_BACK:
                taken = self._engine.revoke(worker, rest[0])
                self.workers[worker].is_leaving = self.workers[worker].has_grown
                self.trace.add(self.now_s, "taken back", worker, taken)
                machine.taken_back(worker, taken)
            elif what is START:
                self._start(worker)
            elif what is RETIRE:
                self.trace.add(self.now_s, "retire", worker)
                self._engine.retire(worker)
            elif what is FORGET:
                continue  # a simulated worker has read no more than the task that it is at
            else:
                self._look_at(worker, kills=rest[0])
        if machine.fatal is not None:
            fatal = machine.fatal
            self.trace.add(self.now_s, "fatal", type(fatal).__name__)
            self.close()
            raise fatal
        self.books.check()

    def _give(self, worker: int, task: Task) -> None:
        self.trace.add(self.now_s, "give", worker, task.id, task.slot)
        not_sent = self.scenario.accidents.not_sent
        if not_sent and type(task.indices) is not Call and self.dice.random() < not_sent:
            self.machine.not_given(task.id, NotSent("indices that cannot be sent"))
        else:
            self._engine.submit(worker, task, self.machine._flights[task.id].ordinal)

    def _start(self, worker: int) -> None:
        self.trace.add(self.now_s, "start", worker)
        try:
            self._engine.replace(worker)
        except WorkerStartError as exc:
            self.machine.not_started(worker, exc)
        else:
            self.machine.started(worker)

    def _look_at(self, worker: int, *, kills: bool) -> None:
        self.trace.add(self.now_s, "look at", worker, kills)
        if kills:
            self._engine.kill(worker)
        self.machine.seen(worker, Seen(None, None, kills))
