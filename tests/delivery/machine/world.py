"""A machine without an engine: tests play the workers and read the decisions."""

from __future__ import annotations

from typing import Any

from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.epoch import Epoch, Limits, Requests
from feedline.delivery.machine.flights import GIVE, START, TAKE_BACK, Decision
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.recovery import Recovery
from feedline.errors import WorkerDied
from feedline.order.plan import Progress
from feedline.schedulers import InOrder
from feedline.types import Position, Result, ResultKind, Task
from tests.loader.beginnings import plan_of


class Slots:
    """Fake slots, each with one owner at a time. The payload of a batch is the number of its slot."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.taken: set[int] = set()

    def left(self, in_flight: int = 0) -> int:
        return self.count - len(self.taken)

    def acquire(self, worker: int) -> int:
        if not self.left():
            return -1
        slot = min(set(range(self.count)) - self.taken)
        self.taken.add(slot)
        return slot

    def release(self, slot: int, used: int | None = None) -> None:
        if slot >= 0:
            self.taken.remove(slot)

    def discard(self, result: Result) -> None:
        if result.kind is ResultKind.DONE:
            self.release(result.payload)

    def fit_messages(self) -> int:
        return 0


class World:
    """A machine, and the tasks it has given to each worker."""

    def __init__(
        self,
        batches: int = 4,
        *,
        workers: int = 2,
        depth: int = 2,
        slots: int = 8,
        restarts: int = 0,
        timeout_s: float = 0.0,
        moves: bool = True,
        resumes: dict[int, Position] | None = None,
        most: int | None = None,
    ) -> None:
        self.slots = Slots(slots)
        self.counters = Counters()
        recovery = Recovery(restarts=restarts)
        self.machine = Machine(workers, self.slots, recovery, self.counters, most=most)
        self.limits = Limits(workers * depth, depth, timeout_s, kills_stuck=restarts > 0, moves=moves)
        self.tasks: list[list[Task]] = [[] for _ in range(most or workers)]
        """What each worker has, oldest first."""
        self._target: int | None = None
        """The worker for which tasks are taken back, by the last decision."""
        self.begin(batches, resumes)

    def begin(self, batches: int, resumes: dict[int, Position] | None = None) -> None:
        """Begin an epoch with the batches [0], [1], ..."""
        plan = plan_of([[number] for number in range(batches)])
        self.epoch = Epoch(
            plan, InOrder(), self.limits, Progress(positions=resumes or {}), Requests(), restores=resumes is not None
        )
        self.machine.begin(self.epoch)

    def decided(self) -> list[Decision]:
        """Hand out the tasks that were decided; return the other decisions."""
        others = []
        while self.machine.decisions:
            decision = self.machine.decisions.popleft()
            if decision[0] is GIVE:
                self.tasks[decision[1]].append(decision[2])
            else:
                self._target = decision[2] if decision[0] is TAKE_BACK else None
                others.append(decision)
        return others

    def given(self) -> list[list[Any]]:
        """Return the tasks of each worker, asserting that there are no other decisions."""
        assert self.decided() == []
        return [[task.indices for task in tasks] for tasks in self.tasks]

    def answer(self, worker: int, kind: ResultKind = ResultKind.DONE, **more: Any) -> Task:
        """Let a worker answer its oldest task."""
        self.decided()
        task = self.tasks[worker].pop(0)
        payload: Any = task.slot if kind is ResultKind.DONE else ValueError("torn")
        self.machine.answered(Result(kind, worker, task.id, payload, **more))
        return task

    def take_back(self, worker: int, begun: int = 1) -> None:
        """Take back all tasks that a worker has not started, for the worker that was decided last."""
        waiting = self.tasks[worker][begun:]
        del self.tasks[worker][begun:]
        self.machine.crew.taken_back(worker, self._target, [task.id for task in waiting])

    def die(self, worker: int, begun: int = 1, death: BaseException | None = None) -> None:
        """Let a worker die that had started `begun` of its tasks."""
        self.decided()
        waiting = self.tasks[worker][begun:]
        self.tasks[worker].clear()
        death = death or WorkerDied(f"worker {worker} is gone")
        self.machine.crew.died(worker, death, [task.id for task in waiting])

    def replace(self, worker: int, begun: int = 1, death: BaseException | None = None) -> None:
        """Let a worker die and start another in its place."""
        self.die(worker, begun, death)
        assert self.decided() == [(START, worker)]
        self.machine.crew.started(worker)

    def take(self) -> int:
        """Deliver the next batch and release it; negative if it is not ready."""
        ordinal = self.machine.take()
        if ordinal >= 0:
            result = self.epoch.pop(ordinal)
            self.slots.discard(result)
            self.machine.fill()
            self.epoch.note(ordinal, result.worker, result.position)
        return ordinal

    def outstanding(self) -> list[int]:
        return [view.outstanding for view in self.machine.flights.workers]

    def resize(self, count: int) -> list[Decision]:
        """Change the number of workers and start new ones; return the decisions."""
        self.machine.crew.resize(count)
        decided = self.decided()
        for decision in decided:
            if decision[0] is START:
                self.machine.crew.started(decision[1])
        return decided
