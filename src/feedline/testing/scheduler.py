"""What every scheduler must do, as tests over simulated epochs.

Say in a subclass how your scheduler is made:

    class TestMyScheduler(SchedulerContract):
        def make_scheduler(self) -> Scheduler:
            return MyScheduler()

The simulation plays the loader and the workers. Who finishes first is drawn at random from many seeds, and by a few
habits that are hard on schedulers: one worker is always last, or always first.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from feedline.abc import Scheduler, WorkerView

Pick = Callable[[list[int]], int]
"""Chooses which of the busy workers finishes next."""


class Simulation:
    """One epoch: plays the loader around a scheduler and checks each of its answers."""

    def __init__(self, scheduler: Scheduler, worker_count: int, depth: int, plan: list[Any], pick: Pick) -> None:
        self.scheduler = scheduler
        self.delivered: list[int] = []
        self.made_by: dict[int, int] = {}
        self._plan = plan
        self._window = worker_count * depth
        self._pick = pick
        self._views = [WorkerView(number) for number in range(worker_count)]
        self._queues: list[deque[int]] = [deque() for _ in range(worker_count)]
        self._ready: dict[int, str] = {}
        self._sent = 0
        self._now_s = 0.0
        scheduler.open(worker_count, depth)

    def run(self, until: int | None = None) -> None:
        """Deliver batches, all of them if not told how many."""
        wanted = len(self._plan) if until is None else until
        while len(self.delivered) < wanted:
            self._fill()
            if not self._deliver():
                self._relieve()
                self._finish_one()

    def _fill(self) -> None:
        while self._sent < len(self._plan) and self._sent - len(self.delivered) < self._window:
            worker = self.scheduler.assign(self._sent, self._plan[self._sent], self._views)
            if worker is None:
                idle = not any(view.outstanding for view in self._views)
                assert not (idle and not self._ready), f"batch {self._sent} is held back although nothing is under way"
                return
            assert worker in range(len(self._views)), f"assign chose worker {worker!r}"
            self._give(worker, self._sent)
            self._sent += 1

    def _give(self, worker: int, ordinal: int) -> None:
        view = self._views[worker]
        if not view.outstanding:
            view.since_s = self._now_s
        view.outstanding += 1
        self._queues[worker].append(ordinal)

    def _expected(self) -> int:
        done = set(self.delivered)
        return next(number for number in range(len(self.delivered) + 1) if number not in done)

    def _deliver(self) -> bool:
        if not self._ready:
            return False
        before = list(self._ready)
        ordinal = self.scheduler.take(self._ready, self._expected())
        assert list(self._ready) == before, "take changed what is ready"
        if ordinal is None:
            assert any(self._queues), f"take delivers none of {before} although nothing else is under way"
            return False
        assert ordinal in self._ready, f"take chose batch {ordinal!r}, but {before} are ready"
        if self.scheduler.in_order:
            assert ordinal == self._expected(), f"in_order is True, but batch {ordinal} comes before {self._expected()}"
        del self._ready[ordinal]
        self.delivered.append(ordinal)
        return True

    def _relieve(self) -> None:
        while any(not view.outstanding for view in self._views):
            move = self.scheduler.relieve(self._views, self._now_s, typical_s=1.0)
            if move is None:
                return
            source, target = move
            assert source in range(len(self._views)), f"relieve chose worker {source!r}"
            assert target in range(len(self._views)), f"relieve chose worker {target!r}"
            assert not self._views[target].outstanding, f"relieve gives work to worker {target}, who has some"
            if len(self._queues[source]) < 2:
                return  # it has begun all it was given: the loader would find nothing to take back either
            ordinal = self._queues[source][1]
            del self._queues[source][1]
            self._views[source].outstanding -= 1
            self._give(target, ordinal)

    def _finish_one(self) -> None:
        worker = self._pick([number for number, queue in enumerate(self._queues) if queue])
        ordinal = self._queues[worker].popleft()
        self._now_s += 1.0
        self._views[worker].outstanding -= 1
        self._views[worker].since_s = self._now_s
        self._ready[ordinal] = "finished"
        self.made_by[ordinal] = worker


class SchedulerContract:
    """Subclass this, override `make_scheduler`, and let pytest collect the subclass.

    Example:
        >>> from feedline.schedulers import InOrder
        >>> class TestInOrder(SchedulerContract):
        ...     def make_scheduler(self):
        ...         return InOrder()
        >>> TestInOrder().test_every_batch_is_delivered_once()
    """

    worker_counts: tuple[int, ...] = (1, 2, 3, 7)
    depths: tuple[int, ...] = (1, 2, 5)

    def make_scheduler(self) -> Scheduler:
        """Return a scheduler that has not been opened."""
        raise NotImplementedError("say how the scheduler is made")

    def make_plan(self, count: int) -> list[Any]:
        """Return what `count` batches consist of; override it if the scheduler looks at indices."""
        return [[2 * number, 2 * number + 1] for number in range(count)]

    def _habits(self) -> Iterator[Pick]:
        for seed in range(10):
            yield random.Random(seed).choice
        yield min
        yield max
        yield lambda busy: busy[0] if len(busy) == 1 else min(busy[1:])  # the first worker is always last

    def _simulations(self, count: int) -> Iterator[Simulation]:
        scheduler = self.make_scheduler()
        for worker_count in self.worker_counts:
            for depth in self.depths:
                for pick in self._habits():
                    yield Simulation(scheduler, worker_count, depth, self.make_plan(count), pick)

    def test_every_batch_is_delivered_once(self) -> None:
        for simulation in self._simulations(40):
            simulation.run()
            assert sorted(simulation.delivered) == list(range(40))

    def test_in_order_is_kept_if_it_is_declared(self) -> None:
        for simulation in self._simulations(40):
            if simulation.scheduler.in_order:
                simulation.run()
                assert simulation.delivered == list(range(40))

    def test_an_epoch_that_is_left_does_not_show_in_the_next(self) -> None:
        for left_after in (0, 1, 5):
            for simulation in self._simulations(20):
                simulation.run(until=left_after)
        for simulation in self._simulations(20):  # the same object, opened again and again
            simulation.run()

    def test_short_epochs(self) -> None:
        for count in range(4):
            for simulation in self._simulations(count):
                simulation.run()
                assert sorted(simulation.delivered) == list(range(count))

    def test_a_depth_of_nothing_is_a_depth_of_one(self) -> None:
        scheduler = self.make_scheduler()
        scheduler.open(2, 0)
        assert scheduler.depth >= 1

    def test_the_grace_is_a_time(self) -> None:
        scheduler = self.make_scheduler()
        scheduler.open(2, 2)
        for typical_s in (0.0, 1e-6, 1.0, 3600.0):
            grace_s = scheduler.grace_s(typical_s)
            assert math.isfinite(grace_s)
            assert grace_s > 0
