"""A worker of a simulated world: what it makes is real, the time that it takes is drawn."""

from __future__ import annotations

import copy
import random
from collections import deque
from dataclasses import dataclass, replace

from feedline.abc.error_policy import ErrorPolicy
from feedline.abc.faults import Failure, Verdict
from feedline.abc.worker_spec import WorkerSpec
from feedline.frameworks.numpy import NumpyFramework
from feedline.simulation.dataset import Blocked, Items, Killed, OwnStream, SharedStream
from feedline.simulation.scenario import MAP, SHARED, InTurn, LawBroken, Scenario, Seconds
from feedline.types import Call, DatasetKind, Result, Share, StreamSplit, Task, WorkerIdentity
from feedline.workers.runner import Runner

_LATE = 20.0


def draw_s(dice: random.Random, seconds: Seconds, place: int = 0) -> float:
    """Draw a time; of recorded ones that come in turn, that of the batch at this place."""
    if isinstance(seconds, InTurn):
        return seconds.seconds[place % len(seconds.seconds)]
    if isinstance(seconds, (int, float)):
        return dice.expovariate(1.0 / seconds) if seconds else 0.0
    return dice.choice(seconds)


class _Repeatable(ErrorPolicy):
    """A policy whose pauses follow from the seed of the world."""

    def __init__(self, policy: ErrorPolicy, dice: random.Random) -> None:
        self._policy = policy
        self._dice = dice

    def decide(self, failure: Failure, chance: float) -> Verdict:
        return self._policy.decide(failure, self._dice.random())

    @property
    def never_catches(self) -> bool:
        return self._policy.never_catches


def spec_of(scenario: Scenario, dataset: Items | SharedStream | OwnStream, workers: int, share: Share) -> WorkerSpec:
    """Return what all workers of a loader have to know."""
    split = StreamSplit(scenario.batch_size or 1, share, scenario.drop_last) if scenario.kind == SHARED else None
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
        split=split,
    )


# Samples in, the batch out.
def _as_they_are(samples: object) -> object:
    return samples


@dataclass
class Outcome:
    """What comes of a task that a worker begins."""

    result: Result | None
    """None if it does not answer."""
    seconds: float
    dies: bool = False


class Worker:
    """Does one task after the other.

    Args:
        number: which worker.
        life: how many were in its place before.
        spec: what all workers know; the dataset is copied.
        scenario: how long things take, and what goes wrong.
        dice: of the world.
    """

    def __init__(self, number: int, life: int, spec: WorkerSpec, scenario: Scenario, dice: random.Random) -> None:
        self.number = number
        self.life = life
        self.queue: deque[Task] = deque()
        """Tasks that it was given and has not answered."""
        self.has_begun = False
        """True if it is at the first of them."""
        self.is_ready = False
        self.is_dead = False
        self.is_stopped = False
        """True if it begins nothing any more, and is not dead."""
        self.is_absent = False
        """True if it was not started, or has been retired."""
        self.has_grown = False
        self.is_leaving = False
        """True if it is to be replaced, and has been asked for what it has not begun."""
        self.unheard = 0
        """Answers that the machine was not told of yet."""
        self._scenario = scenario
        self._dice = dice
        self._paused_s = 0.0
        self._dataset = spec.dataset.copy()
        policy = None if spec.on_error is None else _Repeatable(spec.on_error, dice)
        own = replace(spec, dataset=self._dataset, on_error=policy)
        identity = WorkerIdentity(number, spec.worker_count, 0, self._dataset, threaded=True)
        self._runner = Runner(own, identity, pause=self._pause)

    @property
    def outstanding(self) -> int:
        """Tasks that the machine has not heard of since it gave them."""
        return len(self.queue) + self.unheard

    def _pause(self, seconds: float) -> None:
        self._paused_s += seconds

    def revoke(self) -> int | None:
        """Take back the oldest task that it has not begun; returns its number."""
        begun = int(self.has_begun)
        if len(self.queue) <= begun:
            return None
        task = self.queue[begun]
        del self.queue[begun]
        return task.id

    def begin(self, heard: list[int], ordinal: int, at_work: int) -> Outcome:
        """Begin the next task.

        Args:
            heard: the calls that the loader's own dataset has heard.
            ordinal: which batch it is about.
            at_work: how many workers are at a task, with this one.
        """
        self.has_begun = True
        task, scenario, dice = self.queue[0], self._scenario, self._dice
        self._paused_s = 0.0
        seconds = draw_s(dice, scenario.batch_s, ordinal) * scenario.contention(at_work)
        if scenario.late and dice.random() < scenario.late:
            seconds *= _LATE
        try:
            result = self._runner.attempt(copy.copy(task), self.number, None)
        except Killed:
            return Outcome(None, seconds, dies=True)
        except Blocked:
            return Outcome(None, seconds)
        if self._dataset.calls != heard[: len(self._dataset.calls)]:
            raise LawBroken(f"worker {self.number} has heard the calls {self._dataset.calls}, and {heard} were made")
        accidents = scenario.accidents
        seconds += self._paused_s
        result.busy_ns = max(1, int(seconds * 1e9))
        if accidents.death and dice.random() < accidents.death:
            return Outcome(None, seconds * dice.random(), dies=True)
        if accidents.hang and dice.random() < accidents.hang:
            return Outcome(None, seconds)
        return Outcome(result, seconds)

    def has_heard(self, count: int) -> bool:
        """True if it has heard the first so many calls."""
        return len(self._dataset.calls) >= count

    @property
    def is_at_call(self) -> bool:
        """True if it is at a call."""
        return bool(self.queue) and type(self.queue[0].indices) is Call
