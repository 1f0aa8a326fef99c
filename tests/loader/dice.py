"""Epochs whose workers answer in a random order: the delivered batches must not depend on it.

Workers (`Runner`, with its error handling), driver, machine, epoch, plan and fault budget are real. Only the engine is
not: it has no processes, a task runs when its result is collected, and a sample may kill its worker.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from feedline.abc import Engine, ErrorPolicy, Scheduler, WorkerView
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver import driver
from feedline.delivery.driver.inline_batches import InlineBatches
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.epoch import Epoch, Limits, Requests
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.recovery import Recovery
from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.errors import WorkerDied
from feedline.faults import Policy
from feedline.frameworks.numpy import NumpyFramework
from feedline.order.foreign import ForeignPlan
from feedline.order.order import Entry
from feedline.order.plan import Plan
from feedline.order.progress import Progress
from feedline.order.seekable import SamplePlan
from feedline.randomness.scope import rng
from feedline.samplers import RandomSampler, SequentialSampler
from feedline.samplers.distributed import Distributed
from feedline.schedulers import InOrder, Unordered
from feedline.system.ranks import Share
from feedline.types import DatasetKind, Key, Result, ResultKind, Task, WorkerIdentity
from feedline.workers.runner import Runner
from tests.loader.beginnings import GivenOrder, resources_with
from tests.loader.drivers import Delivered, driver_of
from tests.loader.stepping import Clock

SKIPS = Policy(otherwise="skip", max_share=1.0)


class Killed(BaseException):
    """Raised by a sample that kills its worker."""


class Samples:
    """Samples that equal their indices; some raise, some kill their worker, some do so a number of times."""

    def __init__(self, case: Case) -> None:
        self.count = case.count
        self.bad = set(case.bad)
        self.killers = set(case.killers)
        self.accidents = dict(case.accidents)
        self.draws = case.draws
        self.asked: list[Any] = []
        self.interrupt_at = 0
        """The number of the request that raises KeyboardInterrupt."""

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: Any) -> Any:
        self.asked.append(index)
        if len(self.asked) == self.interrupt_at:
            raise KeyboardInterrupt
        if self.accidents.get(index, 0):
            self.accidents[index] -= 1
            raise Killed
        if index in self.killers:
            raise Killed
        drawn = float(rng().random()) if self.draws else 0
        if index in self.bad:
            raise KeyError(index)
        return index + (drawn + float(rng().random())) / 2 if self.draws else index


class DiceEngine(Engine):
    """Decides at random which worker answers next, and how far the workers are."""

    def __init__(self, spec: WorkerSpec, clock: Clock, dice: random.Random, kills: float = 0.0) -> None:
        self.kills = kills
        """The probability that a worker is killed during a task."""
        self.worker_count = spec.worker_count
        self._spec = spec
        self._clock = clock
        self._dice = dice
        self._runners = [self._runner(worker) for worker in range(self.worker_count)]
        self._queues: list[deque[Task]] = [deque() for _ in range(self.worker_count)]
        self._dead: set[int] = set()
        self.death: Callable[[int], BaseException] = lambda worker: WorkerDied(f"worker {worker} is gone")
        self.closed = False

    def _runner(self, worker: int) -> Runner:
        return Runner(self._spec, WorkerIdentity(worker, self.worker_count, 0, self._spec.dataset, threaded=True))

    def open(self, spec: WorkerSpec) -> None:
        return

    def submit(self, worker: int, task: Task) -> None:
        self._queues[worker].append(copy.copy(task))

    def revoke(self, worker: int) -> int | None:
        queue = self._queues[worker]
        if len(queue) < 2:  # the oldest has started
            return None
        task = queue[1]
        del queue[1]
        return task.id

    def collect(self, timeout_s: float | None, worker: int | None = None) -> list[Result]:
        busy = [number for number, queue in enumerate(self._queues) if queue and number not in self._dead]
        if not busy or (timeout_s is not None and self._dice.random() < 0.2):
            assert timeout_s is not None, "would wait forever: nothing is in flight"
            self._clock.now_s += max(timeout_s, 0.001)
            return []
        answers = []
        for number in self._dice.sample(busy, self._dice.randint(1, len(busy))):
            self._clock.now_s += self._dice.choice((0.0, 0.001, 0.5))
            task = self._queues[number].popleft()
            try:
                if self.kills and self._dice.random() < self.kills:
                    raise Killed
                answers.append(self._runners[number].attempt(task, number, None))
            except Killed:
                self._queues[number].appendleft(task)
                self._dead.add(number)
                answers.append(Result(ResultKind.DIED, number, -1, self.death(number)))
        return answers

    def replace(self, worker: int) -> None:
        self._runners[worker] = self._runner(worker)
        self._queues[worker].clear()
        self._dead.discard(worker)

    def close(self) -> None:
        self.closed = True


class Whim(Scheduler):
    """A user's scheduler that acts at random: it may hold back tasks, and delivers ready batches in any order."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._workers: Sequence[WorkerView] = ()

    def assign(self, ordinal: int, indices: Any, workers: Sequence[WorkerView]) -> int | None:
        self._workers = workers
        return None if self._may_wait() else self._dice.randrange(len(workers))

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return None if not ready or self._may_wait() else self._dice.choice(sorted(ready))

    def _may_wait(self) -> bool:
        return any(worker.outstanding for worker in self._workers) and self._dice.random() < 0.4


@dataclass(frozen=True)
class Case:
    """One way to go through a plan."""

    count: int = 12
    batch_size: int | None = 3
    bad: tuple[int, ...] = ()
    killers: tuple[int, ...] = ()
    accidents: tuple[tuple[int, int], ...] = ()
    """Samples and how many times each kills its worker at first."""
    draws: bool = False
    """True for samples that add random numbers below 1."""
    policy: ErrorPolicy = SKIPS
    given: tuple[tuple[int, ...], ...] = ()
    """The plan, if it does not come from a sampler; an index may occur several times."""
    shuffled: bool = False
    lists: bool = False
    """True for a sampler that is not feedline's: its batches are lists."""
    share: Share = field(default_factory=Share)
    drop_last: bool = False
    workers: int = 0
    """0 for no workers: batches are made when they are requested."""
    depth: int = 2
    order: str = "in order"
    """Or "unordered", or "whim"."""
    restarts: int = 1000
    kills: float = 0.0
    """The probability that a worker is killed during a task, whatever its samples."""
    dice: int = 0

    def plan(self, order: dict[str, Any] | None = None) -> Plan:
        """Return the plan, starting at the position of a saved state."""
        order = order or {}
        consumed = order.get("consumed", 0)
        whole = RandomSampler(range(self.count), seed=7) if self.shuffled else SequentialSampler(range(self.count))
        sampler = whole if self.share.world_size == 1 else Distributed(whole, self.share)
        if self.given:
            return ForeignPlan(iter(list(map(list, self.given[consumed:]))), consumed=consumed, draw_key=1)
        if self.lists:
            every = [entry_of(batch) for batch in self._own_plan(sampler, 0)]
            return ForeignPlan(iter(every[consumed:]), consumed=consumed, draw_key=1)
        return self._own_plan(sampler, consumed)

    def _own_plan(self, sampler: Any, consumed: int) -> SamplePlan:
        return SamplePlan(
            sampler, self.batch_size, drop_last=self.drop_last, key=Key(7, 0), draw_key=1, consumed=consumed
        )

    @property
    def keeps_steps(self) -> bool:
        return self.share.world_size > 1

    def batches(self) -> list[list[int]]:
        """Return the batches of the plan if nothing fails."""
        if self.given:
            return list(map(list, self.given))
        return [listed(entry_of(batch)) for batch in replace(self, lists=False).plan()]

    def begin(self, snapshot: Snapshot | None = None, fault_budget: FaultBudget | None = None) -> Run:
        """Start the epoch, or the rest of it; a fault budget contains earlier failures."""
        return Run(self, snapshot, fault_budget)


def entry_of(batch: Any) -> Any:
    """Return an entry of the plan as plain values."""
    return batch if isinstance(batch, int) else batch.array.tolist()


def listed(batch: Any) -> list[int]:
    return list(batch) if isinstance(batch, list) else [batch]


class Run:
    """A running epoch. Batches are lists, even those of single samples."""

    def __init__(self, case: Case, snapshot: Snapshot | None, fault_budget: FaultBudget | None) -> None:
        self.case = case
        self.dataset = Samples(case)
        self.fault_budget = fault_budget or FaultBudget(case.policy)
        self.fault_budget.keeps_steps = case.keeps_steps
        self.fault_budget.dataset = self.dataset
        self.counters = Counters()
        self._entry = Entry(Key(7, 0), 1, {} if snapshot is None else snapshot.order)
        self._checkpoint = Checkpoint(
            GivenOrder(case.plan(self._entry.order), "own batches" if case.lists or case.given else "samples"),
            self._entry,
            1,
            case.workers,
            case.batch_size or 1,
            keeps_dataset=False,
        )
        self._clock = Clock()
        self.said: list[str] = []
        """Warnings to the user about workers."""
        with self._patched():
            self._iterator = self._workers(snapshot) if case.workers else self._inline(snapshot)

    def _spec(self) -> WorkerSpec:
        case = self.case
        return WorkerSpec(
            dataset=self.dataset,
            kind=DatasetKind.MAP,
            collate=self.collate,
            framework=NumpyFramework(),
            worker_count=case.workers,
            base_seed=0,
            batched=case.batch_size is not None,
            drop_last=case.drop_last,
            on_error=case.policy,
        )

    def collate(self, samples: Any) -> Any:
        """Make the batch."""
        return samples

    def _inline(self, snapshot: Snapshot | None) -> Iterator[Any]:
        resources = resources_with(None)
        resources.counters = self.counters
        return InlineBatches(self._spec(), self._checkpoint, snapshot, resources, None, self.fault_budget)

    def _workers(self, snapshot: Snapshot | None) -> Iterator[Any]:
        case, spec, plan = self.case, self._spec(), self._checkpoint.plan
        assert plan is not None
        self.engine = DiceEngine(spec, self._clock, random.Random(case.dice), case.kills)
        recovery = Recovery(case.policy, self.dataset, batched=spec.batched, restarts=case.restarts)
        self.driver = driver_of(self.engine, counters=self.counters, recovery=recovery)
        self._entry.progress.early.update(() if snapshot is None else snapshot.early)
        self.driver.begin_epoch(
            Epoch(
                plan,
                self._scheduler(),
                Limits(case.workers * case.depth, case.depth),
                self._entry.progress,
                Requests(spec.batched),
                self.fault_budget,
            )
        )
        return Delivered(self.driver)

    def _scheduler(self) -> Scheduler:
        if self.case.order == "whim":
            return Whim(random.Random(self.case.dice))
        return InOrder() if self.case.order == "in order" else Unordered()

    @contextmanager
    def _patched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patches:
            self._clock.install(patches)
            patches.setattr(driver, "warn_user", lambda message, category: self.said.append(message))
            yield

    def take(self, count: int | None = None) -> list[list[int]]:
        """Take `count` batches, or all that are left."""
        batches: list[list[int]] = []
        with self._patched():
            while count is None or len(batches) < count:
                try:
                    batches.append(listed(next(self._iterator)))
                except StopIteration:
                    self.progress.ended = True
                    break
        return batches

    @property
    def progress(self) -> Progress:
        return self._entry.progress

    def snapshot(self) -> Snapshot:
        """Return the position of the epoch as a loader saves it."""
        return Snapshot.from_dict(self._checkpoint.snapshot().as_dict())


__all__ = ["SKIPS", "Case", "DiceEngine", "Killed", "Run", "Samples"]
