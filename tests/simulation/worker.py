"""A simulated worker: its batches are real, and the times they take are drawn or recorded."""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, replace

from feedline.abc.faults import ErrorPolicy, Failure, Verdict
from feedline.abc.worker_spec import WorkerSpec
from feedline.frameworks.numpy import NumpyFramework
from feedline.simulation import engine
from feedline.simulation.scenario import LawBroken, draw_s
from feedline.system.ranks import Share
from feedline.types import Call, DatasetKind, Result, StreamSharding, Task, WorkerIdentity
from feedline.workers.runner import Runner
from tests.simulation.dataset import Blocked, Items, Killed, OwnStream, SharedStream
from tests.simulation.scenario import MAP, OWN, SHARED, Scenario

_LATE = 20.0


class _Repeatable(ErrorPolicy):
    """A policy that takes its randomness from the world's seed."""

    def __init__(self, policy: ErrorPolicy, dice: random.Random) -> None:
        self._policy = policy
        self._dice = dice

    def decide(self, failure: Failure, chance: float) -> Verdict:
        return self._policy.decide(failure, self._dice.random())

    @property
    def never_catches(self) -> bool:
        return self._policy.never_catches


def spec_of(scenario: Scenario, dataset: Items | SharedStream | OwnStream, workers: int, share: Share) -> WorkerSpec:
    """Return the settings that all workers of a loader share."""
    sharding = StreamSharding(scenario.batch_size or 1, share, scenario.drop_last) if scenario.kind == SHARED else None
    return WorkerSpec(
        dataset=dataset,
        kind=DatasetKind.MAP if scenario.kind == MAP else DatasetKind.ITERABLE,
        collate=_as_they_are,
        framework=NumpyFramework(),
        worker_count=workers,
        base_seed=0,
        batched=scenario.batch_size is not None or scenario.ragged,
        drop_last=scenario.drop_last,
        on_error=scenario.policy,
        sharding=sharding,
    )


# Samples in, the batch out.
def _as_they_are(samples: object) -> object:
    return samples


@dataclass
class Outcome:
    """The outcome of a task that a worker starts."""

    result: Result | None
    """None if the worker does not answer."""
    seconds: float
    dies: bool = False
    reading_s: float = 0.0
    """The part of the time in which it reads the samples before the task: it takes the place of another worker."""


class Worker(engine.Worker):
    """Runs its tasks one after the other.

    Args:
        number: the number of this worker.
        life: how many workers had this number before.
        spec: the settings of all workers; the dataset is copied.
        scenario: durations and failures.
        dice: the world's source of randomness.
    """

    def __init__(self, number: int, life: int, spec: WorkerSpec, scenario: Scenario, dice: random.Random) -> None:
        super().__init__(number)
        self.life = life
        self.is_dead = False
        self.is_stopped = False
        """True if it is alive but starts no more tasks."""
        self.is_absent = False
        """True if it was not started, or has been retired."""
        self.has_grown = False
        self.is_leaving = False
        """True if it will be replaced, and the tasks that it has not started were taken back."""
        self.reads_until_s = 0.0
        """When it has read the samples before its task."""
        self._passes: int | None = None
        """The epoch of its last task, counted since the loader's workers were started."""
        self.unreported = 0
        """Answers that have not been reported to the machine."""
        self._scenario = scenario
        self._has_read = False
        self._dice = dice
        self._paused_s = 0.0
        self._dataset = spec.dataset.copy()
        policy = None if spec.on_error is None else _Repeatable(spec.on_error, dice)
        own = replace(spec, dataset=self._dataset, on_error=policy)
        identity = WorkerIdentity(number, spec.worker_count, 0, self._dataset, threaded=True)
        self._runner = Runner(own, identity, pause=self._pause)

    @property
    def outstanding(self) -> int:
        """Tasks that the machine must count as outstanding."""
        return len(self.queue) + self.unreported

    def _pause(self, seconds: float) -> None:
        self._paused_s += seconds

    def run(self, calls: list[int], ordinal: int, at_work: int) -> Outcome:
        """Start the next task.

        Args:
            calls: the calls that the loader's own dataset has received.
            ordinal: the number of its batch.
            at_work: number of busy workers, including this one.
        """
        task, scenario, dice = self.begin(), self._scenario, self._dice
        self._paused_s = 0.0
        self._check_epoch(task)
        seconds = draw_s(dice, scenario.batch_s, ordinal) * scenario.contention(at_work)
        if scenario.late and dice.random() < scenario.late:
            seconds *= _LATE
        replaces = self.life > 0 and scenario.kind != MAP and not self.is_at_call and not self._has_read
        try:
            result = self._runner.attempt(copy.copy(task), self.number, None)
        except Killed:
            return Outcome(None, seconds, dies=True)
        except Blocked:
            return Outcome(None, seconds)
        reading_s = 0.0
        if replaces:
            self._has_read = True
            reading_s = scenario.reread_s * self._runner.stream.place
            seconds += reading_s
        if self._dataset.calls != calls[: len(self._dataset.calls)]:
            raise LawBroken(f"worker {self.number} received the calls {self._dataset.calls}, but {calls} were made")
        accidents = scenario.accidents
        seconds += self._paused_s
        result.busy_ns = max(1, int(seconds * 1e9))
        if accidents.death and dice.random() < accidents.death:
            return Outcome(None, seconds * dice.random(), dies=True)
        if accidents.hang and dice.random() < accidents.hang:
            return Outcome(None, seconds, reading_s=reading_s)
        return Outcome(result, seconds, reading_s=reading_s)

    def _check_epoch(self, task: Task) -> None:
        """Check that a worker with a part in every epoch of a stream misses none of them."""
        if type(task.indices) is Call:
            return
        before, self._passes = self._passes, task.epoch
        if before is None or self._scenario.kind != OWN:
            return
        if task.epoch > before + 1:
            raise LawBroken(f"worker {self.number} has made no batch of the epochs between {before} and {task.epoch}")

    def has_received(self, count: int) -> bool:
        """True if it has received the first `count` calls."""
        return len(self._dataset.calls) >= count

    @property
    def is_at_call(self) -> bool:
        """True if the first task in the queue is a call."""
        return bool(self.queue) and type(self.queue[0].indices) is Call
