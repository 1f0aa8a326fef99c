"""Epochs whose workers answer in a random order: the delivered batches must not depend on it.

Workers (`Runner`, with its error handling), driver, machine, epoch, plan and fault budget are real. Only the engine is
not: it has no processes, a task runs when its result is collected, and a sample may kill its worker.
"""

from __future__ import annotations

import copy
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from feedline.abc import Engine, ErrorPolicy
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver import driver
from feedline.delivery.driver.inline_batches import InlineBatches
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.epoch import Epoch, Limits, Requests
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.recovery import Recovery
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.errors import WorkerDied
from feedline.faults import Policy
from feedline.frameworks.numpy import NumpyFramework
from feedline.order.order import Entry
from feedline.order.progress import Progress
from feedline.order.seekable import SamplePlan
from feedline.samplers import SequentialSampler
from feedline.samplers.distributed import Distributed
from feedline.schedulers import InOrder
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
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        self.asked.append(index)
        if self.accidents.get(index, 0):
            self.accidents[index] -= 1
            raise Killed
        if index in self.killers:
            raise Killed
        if index in self.bad:
            raise KeyError(index)
        return index


class DiceEngine(Engine):
    """Decides at random which worker answers next, and how far the workers are."""

    def __init__(self, spec: WorkerSpec, clock: Clock, dice: random.Random) -> None:
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


@dataclass(frozen=True)
class Case:
    """One way to go through samples in order."""

    count: int = 12
    batch_size: int | None = 3
    bad: tuple[int, ...] = ()
    killers: tuple[int, ...] = ()
    accidents: tuple[tuple[int, int], ...] = ()
    """Samples and how many times each kills its worker at first."""
    policy: ErrorPolicy = SKIPS
    share: Share = field(default_factory=Share)
    workers: int = 0
    """0 for no workers: batches are made when they are requested."""
    restarts: int = 1000
    dice: int = 0

    def plan(self) -> SamplePlan:
        """Return the batches of this rank."""
        whole = SequentialSampler(range(self.count))
        sampler = whole if self.share.world_size == 1 else Distributed(whole, self.share)
        return SamplePlan(sampler, self.batch_size, drop_last=False, key=Key(7, 0), draw_key=1)

    def begin(self, fault_budget: FaultBudget | None = None) -> Run:
        """Start the epoch; a fault budget contains earlier failures."""
        return Run(self, fault_budget)


class Run:
    """A running epoch. Batches are lists, even those of single samples."""

    def __init__(self, case: Case, fault_budget: FaultBudget | None) -> None:
        self.case = case
        self.dataset = Samples(case)
        self.fault_budget = fault_budget or FaultBudget(case.policy)
        self.fault_budget.keeps_steps = case.share.world_size > 1
        self.fault_budget.dataset = self.dataset
        self.counters = Counters()
        self._entry = Entry(Key(7, 0), 1, {})
        self._clock = Clock()
        self.said: list[str] = []
        """Warnings to the user about workers."""
        with self._patched():
            self._iterator = self._workers() if case.workers else self._inline()

    def _spec(self) -> WorkerSpec:
        case = self.case
        return WorkerSpec(
            dataset=self.dataset,
            kind=DatasetKind.MAP,
            collate=list if case.batch_size else _as_it_is,
            framework=NumpyFramework(),
            worker_count=case.workers,
            base_seed=0,
            batched=case.batch_size is not None,
            on_error=case.policy,
        )

    def _inline(self) -> Iterator[Any]:
        case, resources = self.case, resources_with(None)
        resources.counters = self.counters
        order = GivenOrder(case.plan(), "samples")
        checkpoint = Checkpoint(order, self._entry, 1, 0, case.batch_size or 1, keeps_dataset=False)
        return InlineBatches(self._spec(), checkpoint, None, resources, None, self.fault_budget)

    def _workers(self) -> Iterator[Any]:
        case, spec = self.case, self._spec()
        self.engine = DiceEngine(spec, self._clock, random.Random(case.dice))
        recovery = Recovery(case.policy, self.dataset, batched=spec.batched, restarts=case.restarts)
        self.driver = driver_of(self.engine, counters=self.counters, recovery=recovery)
        limits, requests = Limits(case.workers * 2, 2), Requests(spec.batched)
        self.driver.begin_epoch(
            Epoch(case.plan(), InOrder(), limits, self._entry.progress, requests, self.fault_budget)
        )
        return Delivered(self.driver)

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
                    batch = next(self._iterator)
                except StopIteration:
                    self.progress.ended = True
                    break
                batches.append(batch if isinstance(batch, list) else [batch])
        return batches

    @property
    def progress(self) -> Progress:
        return self._entry.progress


# Any: one sample.
def _as_it_is(sample: Any) -> Any:
    return sample
