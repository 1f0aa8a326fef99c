"""One loader in virtual time: the real machine, and workers, slots and a clock that are not.

This is the other driver: it does what the machine decides, as the loader's own one does; instead of waiting, it moves
its clock to the next thing that happens.
"""

from __future__ import annotations

import contextlib
import functools
import heapq
import math
import random
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from feedline.abc.stateful import is_stateful
from feedline.core.counters import Counters
from feedline.core.decisions import GIVE, START, TAKE_BACK
from feedline.core.epoch import Epoch
from feedline.core.fault_budget import FaultBudget
from feedline.core.machine import Machine
from feedline.core.recovery import Recovery, RecoveryOptions, Seen
from feedline.driver.batches import begin_epoch
from feedline.driver.driver import Driver
from feedline.driver.settings import Settings
from feedline.errors import WorkerDied, WorkerError, WorkerStartError
from feedline.order.order import Entry, Order
from feedline.randomness.keys import epoch_key
from feedline.state import Snapshot
from feedline.state.checkpoint import Checkpoint
from feedline.testing.simulation.dataset import CallFailed, NotReady, NotSent, dataset_of
from feedline.testing.simulation.laws import Books
from feedline.testing.simulation.scenario import MAP, LawBroken, Scenario
from feedline.testing.simulation.scheduler import order_of, scheduler_of
from feedline.testing.simulation.slots import CountedSlots
from feedline.testing.simulation.worker import Worker, draw_s, spec_of
from feedline.types import Call, Key, Parcel, Result, ResultKind, Share, Task

_MOST_IDLE = 10_000
"""Turns of the machine in which nothing happens and no time passes."""


_MOST_DEATHS = 60
"""Workers that die at most until a sample that kills is found. With batches of 8 and two retries it takes about 30."""

_TICK_S = 1e-9


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
    """

    def __init__(self, scenario: Scenario, workers: int, share: Share, trace: Trace, dice: random.Random) -> None:
        self.scenario = scenario
        self.share = share
        self.now_s = 0.0
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
        self.checkpoint: Checkpoint | None = None
        self.raised: BaseException | None = None
        """What came last instead of a batch. What else a loader raises is about the loader itself."""
        self.on_hand_out: Callable[[int, int, Any], None] = lambda ordinal, worker, batch: None
        self._settings = Settings(
            workers,
            "process",
            depth=scenario.depth,
            timeout_s=scenario.timeout_s,
            restarts=scenario.restarts if scenario.kills_stuck else None,
            scheduler=scheduler_of(scenario, random.Random(dice.random())),
        )
        self._spec = spec_of(scenario, self.dataset, workers, share)
        options = RecoveryOptions(
            scenario.policy,
            self.dataset,
            self._spec.batched,
            searches=not is_stateful(self.dataset),
            restarts=scenario.restarts,
            wall_s=lambda: self.now_s,
            chance=dice.random,
        )
        self.machine = Machine(workers, self.slots, Recovery(options), self.counters)
        self.workers = [Worker(number, 0, self._spec, scenario, dice) for number in range(workers)]
        accidents, fatal = scenario.accidents, len(scenario.troubles.fatal)
        most = math.inf if accidents.blames or accidents.death_at_start else _MOST_DEATHS * fatal
        self.books = Books(self.machine, self.slots, self.workers, self.counters, scenario.restarts, most)
        self._events: list[tuple[float, int, str, Worker, Any]] = []
        self._count = 0
        self._heard: deque[tuple[Worker | None, Result]] = deque()
        """What workers have said, and the machine was not told."""
        self._needs: dict[int, int] = {}
        """How many calls a worker must have heard before it begins a task."""
        self.early: tuple[int, ...] = ()
        """Batches of the epoch that had been delivered before it was entered."""
        for worker in self.workers:
            self._get_ready(worker)

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
        # Of a driver that function asks for no more than what this class has, too: `machine` and `begin`.
        driver = cast(Driver, _Beginner(self))
        begin_epoch(driver, self._settings, self._spec, self.checkpoint, snapshot, fault_budget=fault_budget)

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
        machine, began_s, idle = self.machine, self.now_s, 0
        machine.now_s = self.now_s
        machine.ask()
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
            idle = 0 if self.now_s > before_s + 2 * _TICK_S else idle + 1
            if idle > _MOST_IDLE:
                raise LawBroken("the machine goes round in circles: no time passes, and nothing is delivered")

    def _hand_out(self, ordinal: int) -> tuple[Any, int]:
        machine, epoch = self.machine, self.epoch
        result = epoch.pop(ordinal)
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
                epoch.ask_again(worker)
                machine.fill()
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

    def state(self) -> dict[str, Any] | None:
        """Return where the loader is; None if that cannot be told, because workers did not tell how they began."""
        epoch = self.epoch
        if not (epoch.is_opened() or self.closed):
            with contextlib.suppress(WorkerError, CallFailed):  # it is raised here, and perhaps again by `next`
                self._await_openings()
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

    def pass_time(self, seconds: float) -> None:
        """Let time pass in which the training loop asks for nothing."""
        self.now_s += seconds

    def close(self) -> None:
        """End the workers."""
        if not self.closed:
            self.closed = True
            self.machine.close()
            self._events.clear()
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
        books = self.books
        books.check_wait(worker)
        until_s = None if pause_s is None else self.now_s + max(0.0, pause_s)
        while True:
            self._let_happen()
            # A worker that is waited for is heard alone, at times: what the others say may be left for later.
            alone = worker is not None and self.dice.random() < 0.5
            heard = [one for one in self._heard if not alone or one[1].worker == worker]
            if heard:
                self._heard = deque([one for one in self._heard if alone and one[1].worker != worker])
                break
            next_s = self._events[0][0] if self._events else None
            if next_s is None and (until_s is None or not self.scenario.timeout_s):
                if self._heard:
                    continue
                raise LawBroken("the machine waits, and nothing will ever happen")
            if until_s is not None and (next_s is None or next_s > until_s):
                # A clock goes on, however short the pause: the rest of it may be less than a float can add.
                self.now_s = self.machine.now_s = max(until_s, self.now_s + _TICK_S)
                return
            assert next_s is not None
            self.now_s = max(self.now_s, next_s)
        self.machine.now_s = self.now_s
        for said in heard:
            self._tell(*said)
        if not self.machine.decisions and self.machine.fatal is None:
            books.check()

    def _tell(self, worker: Worker | None, result: Result) -> None:
        """Tell the machine what a worker has said."""
        machine = self.machine
        if result.kind is ResultKind.DIED:
            assert worker is not None
            unbegun = self._revoke(worker, None)
            self.trace.add(self.now_s, "died", worker.number, unbegun)
            self.books.deaths += 1
            self.books.epoch_deaths += 1
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

    def _at(self, seconds: float, what: str, worker: Worker, fact: Any = None) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_s + seconds, self._count, what, worker, fact))

    def _let_happen(self) -> None:
        """Let everything happen that should have happened by now."""
        now_s, events = self.now_s, self._events
        while events and events[0][0] <= now_s:
            self.now_s, _, what, worker, fact = heapq.heappop(events)
            if self.workers[worker.number] is not worker or worker.is_dead:
                continue
            if what == "ready":
                worker.is_ready = True
                self._go_on(worker)
            elif what == "done":
                self._answer(worker, fact)
            else:
                self._die(worker, fact)
        self.now_s = now_s

    def _get_ready(self, worker: Worker) -> None:
        accidents, dice = self.scenario.accidents, self.dice
        seconds = draw_s(dice, self.scenario.start_s)
        if accidents.death_at_start and dice.random() < accidents.death_at_start:
            death: Exception = WorkerDied(f"worker {worker.number} died before it was ready.")
            death.was_ready, death.was_killed = False, dice.random() < 0.7  # type: ignore[attr-defined]  # WorkerDied
            if dice.random() < 0.3:
                death = NotReady("in worker_init_fn")
            self._at(seconds, "death", worker, death)
        else:
            self._at(seconds, "ready", worker)

    def _go_on(self, worker: Worker) -> None:
        """Let a worker begin its next task, if it has one."""
        if not worker.queue or worker.has_begun or not worker.is_ready or worker.is_dead:
            return
        task = worker.queue[0]
        if not (worker.is_at_call or worker.has_heard(self._needs.get(task.id, 0))):
            raise LawBroken(f"worker {worker.number} begins task {task.id}, and has not heard a call before it")
        outcome = worker.begin(self.dataset.calls)
        if outcome.result is not None:
            self._at(outcome.seconds, "done", worker, outcome.result)
        elif outcome.dies:
            self._at(outcome.seconds, "death", worker, WorkerDied(f"worker {worker.number} was killed."))

    def _answer(self, worker: Worker, result: Result) -> None:
        task = worker.queue.popleft()
        worker.has_begun = False
        worker.unheard += 1
        self._needs.pop(task.id, None)
        if result.kind is ResultKind.DONE and type(task.indices) is not Call:
            if task.slot >= 0:
                self.slots.memory[task.slot] = result.payload
            result.payload = Parcel(result.payload, task.slot, 1)
        self._heard.append((worker, result))
        self._go_on(worker)

    def _die(self, worker: Worker, death: Exception) -> None:
        worker.is_dead = True
        if worker.has_begun and worker.queue[0].slot >= 0:
            self.slots.memory[worker.queue[0].slot] = "half of a batch"
        self._heard.append((worker, Result(ResultKind.DIED, worker.number, -1, death)))

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
                self._give(self.workers[worker], rest[0])
            elif what is TAKE_BACK:
                taken = self._revoke(self.workers[worker], rest[0])
                self.workers[worker].is_leaving = self.workers[worker].has_grown
                self.trace.add(self.now_s, "taken back", worker, taken)
                machine.taken_back(worker, taken)
            elif what is START:
                self._start(worker)
            else:
                self._look_at(worker, kills=rest[0])
        if machine.fatal is not None:
            fatal = machine.fatal
            self.trace.add(self.now_s, "fatal", type(fatal).__name__)
            self.close()
            raise fatal
        self.books.check()

    def _give(self, worker: Worker, task: Task) -> None:
        self.trace.add(self.now_s, "give", worker.number, task.id, task.slot)
        not_sent = self.scenario.accidents.not_sent
        if not_sent and type(task.indices) is not Call and self.dice.random() < not_sent:
            self.machine.not_given(task.id, NotSent("indices that cannot be sent"))
            return
        if worker.is_leaving and type(task.indices) is not Call:
            raise LawBroken(f"worker {worker.number} is to be replaced, and gets task {task.id}")
        self._let_happen()
        self._needs[task.id] = len(self.dataset.calls)
        worker.queue.append(task)
        self._go_on(worker)

    def _revoke(self, worker: Worker, count: int | None) -> list[int]:
        self._let_happen()
        taken: list[int] = []
        while count is None or len(taken) < count:
            task_id = worker.revoke()
            if task_id is None:
                break
            self._needs.pop(task_id, None)
            taken.append(task_id)
        return taken

    def _start(self, number: int) -> None:
        old, dice, accidents = self.workers[number], self.dice, self.scenario.accidents
        self.trace.add(self.now_s, "start", number)
        if accidents.no_start and dice.random() < accidents.no_start:
            self.machine.not_started(number, WorkerStartError("There are too many processes."))
            return
        if old.queue and accidents.late_answer and dice.random() < accidents.late_answer:
            task = dice.choice(old.queue)
            late = Result(ResultKind.DONE, number, task.id, Parcel(["too late"], task.slot, 1))
            self._heard.append((None, late))
        worker = self.workers[number] = Worker(number, old.life + 1, self._spec, self.scenario, dice)
        self._get_ready(worker)
        self.machine.started(number)

    def _look_at(self, number: int, *, kills: bool) -> None:
        worker = self.workers[number]
        self.trace.add(self.now_s, "look at", number, kills)
        self._let_happen()
        if kills and not worker.is_dead:
            self._die(worker, WorkerDied(f"worker {number} was ended."))
        self.machine.seen(number, Seen(None, None, kills))


class _Beginner:
    """What `begin_epoch` needs of a driver."""

    def __init__(self, world: World) -> None:
        self.machine = world.machine
        self._world = world

    def begin(self, epoch: Epoch) -> None:
        self.machine.now_s = self._world.now_s
        self.machine.begin(epoch)
        self._world.perform()
