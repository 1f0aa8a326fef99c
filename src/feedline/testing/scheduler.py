"""What every scheduler must do, as tests in simulated worlds.

Define in a subclass how your scheduler is created:

    class TestMyScheduler(SchedulerContract):
        def make_scheduler(self) -> Scheduler:
            return MyScheduler()

The loader's own core carries out the scheduler's decisions in virtual time: task durations are random, and some workers
are late. A decision that a loader would reject fails the test, and so does one that breaks a law of the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from feedline.abc import Scheduler
from feedline.simulation import Scenario, World


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
        raise NotImplementedError("Override make_scheduler() to return your scheduler.")

    def _worlds(self, count: int) -> Iterator[tuple[World, Scheduler]]:
        """Yield worlds with `count` batches of two samples. The same scheduler is opened again for each world."""
        scheduler = self.make_scheduler()
        for workers in self.worker_counts:
            for depth in self.depths:
                for seed in range(3):
                    scenario = Scenario(
                        seed, samples=2 * count, batch_size=2, workers=workers, depth=depth, late=0.1 * seed
                    )
                    yield World(scenario, scheduler=scheduler), scheduler

    def _delivered(self, world: World, most: float = math.inf) -> list[int]:
        """Start an epoch; return the numbers of up to `most` batches in the order of delivery."""
        came: list[int] = []
        try:
            world.begin()
            while len(came) < most:
                came.append(world.next()[0] // 2)
        except StopIteration:
            pass  # all batches were delivered
        except AssertionError:
            raise
        except Exception as exc:
            raise AssertionError(f"after batches {came[-8:]}, the loader raised {type(exc).__name__}: {exc}") from exc
        return came

    def test_every_batch_is_delivered_once(self) -> None:
        for count in (0, 1, 2, 3, 40):
            for world, _ in self._worlds(count):
                assert sorted(self._delivered(world)) == list(range(count))

    def test_in_order_is_kept_if_it_is_declared(self) -> None:
        for world, scheduler in self._worlds(40):
            if scheduler.in_order:
                assert self._delivered(world) == list(range(40))

    def test_an_epoch_that_is_left_does_not_show_in_the_next(self) -> None:
        for left_after in (0, 1, 5):
            for world, _ in self._worlds(20):
                self._delivered(world, left_after)
                assert sorted(self._delivered(world)) == list(range(20))

    def test_a_depth_of_nothing_is_a_depth_of_one(self) -> None:
        scheduler = self.make_scheduler()
        scheduler.open(2, 0)
        assert scheduler.depth >= 1
