"""The controller with simulated workloads: it settles near the best worker count and does not flap."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import pytest

from feedline.delivery.machine.controller import Controller, Measurement


@dataclass
class Plant:
    """A model of workers and a training loop: their speed for any number of workers."""

    batch_s: float = 0.1
    step_s: float = 0.01
    cores: int = 8
    cpu_share: float = 1.0
    noise: float = 0.0
    crowding: float = 0.0
    """What each worker beyond the cores costs."""
    most: int = 1 << 30

    def rate(self, count: int) -> float:
        """Batches per second."""
        return 1 / max(self.step_s, self.per_batch_s(count) / count)

    def per_batch_s(self, count: int) -> float:
        """How long a worker takes for a batch if there are `count` workers."""
        crowd = max(1.0, count * self.cpu_share / self.cores)
        return self.batch_s * crowd * (1 + self.crowding * max(0, count - self.cores))

    def best(self, most: int) -> float:
        return max(self.rate(count) for count in range(1, most + 1))

    def period(self, count: int, dice: random.Random) -> Measurement:
        rate = self.rate(count) * (1 + self.noise * dice.uniform(-1, 1))
        batches = 20
        seconds = batches / rate
        wait_s = max(0.0, seconds - batches * self.step_s)
        return Measurement(batches, seconds, wait_s, self.per_batch_s(count), self.cpu_share, lambda: self.most)


def run(controller: Controller, plant: Plant, periods: int = 40, seed: int = 0) -> list[int]:
    """Run some periods; return the number of workers in each."""
    dice = random.Random(seed)
    counts = []
    for _ in range(periods):
        counts.append(controller.count)
        controller.decide(plant.period(controller.count, dice))
    return counts


def changes(counts: list[int]) -> int:
    return sum(one != two for one, two in itertools.pairwise(counts))


PLANTS = {
    "training is the bottleneck": Plant(0.01, 0.1),
    "two workers will do": Plant(0.1, 0.06),
    "six workers will do": Plant(0.3, 0.06),
    "no number is enough": Plant(0.5, 0.001),
    "as many as there are cores": Plant(0.1, 0.001, cores=3),
    "one core": Plant(0.1, 0.001, cores=1),
    "workers sleep": Plant(0.2, 0.005, cores=2, cpu_share=0.05),
    "workers crowd each other out": Plant(0.1, 0.001, cores=4, crowding=0.3, cpu_share=0.8),
    "no memory for more than three": Plant(0.1, 0.001, most=3),
}


@pytest.mark.parametrize("noise", [0.0, 0.03])
@pytest.mark.parametrize("start", [1, 2, 16])
@pytest.mark.parametrize("name", PLANTS)
def test_it_settles_near_the_best_fixed_worker_count(name: str, start: int, noise: float) -> None:
    plant = Plant(**{**vars(PLANTS[name]), "noise": noise})
    controller = Controller(start, most=32, cores=plant.cores)
    counts = run(controller, plant)
    assert changes(counts) <= 9, counts
    assert changes(counts[20:]) == 0, counts
    assert controller.is_settled
    assert plant.rate(controller.count) >= 0.9 * plant.best(min(32, plant.most)), (counts, controller.log)


@pytest.mark.parametrize("seed", range(20))
def test_spikes_do_not_make_it_flap(seed: int) -> None:
    """One period in eight is three times as slow, which must not change the count back and forth."""
    dice = random.Random(seed)
    controller = Controller(2, most=32, cores=16)
    counts = []
    for _ in range(200):
        counts.append(controller.count)
        is_slow = dice.random() < 1 / 8
        controller.decide(Plant(0.3 if is_slow else 0.1, 0.025, cores=16).period(controller.count, dice))
    assert changes(counts) <= 14, (counts, controller.log)


CHANGES: dict[str, tuple[Plant, Plant]] = {
    "batches take longer": (Plant(0.1, 0.05, cores=16), Plant(0.4, 0.05, cores=16)),
    "training gets faster": (Plant(0.2, 0.2, cores=16), Plant(0.2, 0.03, cores=16)),
    "training gets slower": (Plant(0.2, 0.03, cores=16), Plant(0.2, 0.2, cores=16)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_follows_a_changing_load(name: str) -> None:
    before, after = CHANGES[name]
    controller = Controller(2, most=32, cores=16)
    run(controller, before)
    counts = run(controller, after)
    assert after.rate(controller.count) >= 0.9 * after.best(32), controller.log
    assert controller.count <= 1.5 * after.batch_s / after.step_s + 1
    assert changes(counts[20:]) == 0
    assert controller.is_settled


@pytest.mark.parametrize("seed", range(30))
def test_count_and_depth_always_stay_in_bounds(seed: int) -> None:
    dice = random.Random(seed)
    controller = Controller(dice.randint(1, 8), most=8, cores=dice.randint(1, 8), tunes_depth=True)
    for _ in range(100):
        seconds = dice.expovariate(1)
        period = Measurement(dice.randint(1, 50), seconds, seconds * dice.random(), dice.expovariate(2), dice.random())
        controller.decide(period)
        assert 1 <= controller.count <= 8
        assert 2 <= controller.depth <= 8
    assert len(controller.log) < 150


def test_if_workers_wait_the_depth_grows_instead_of_their_number() -> None:
    controller = Controller(4, most=32, cores=16, depth=2, tunes_depth=True)
    waiting = Measurement(batches=20, seconds=2.0, wait_s=0.5, busy_s=0.1)
    assert controller.decide(waiting)
    assert (controller.count, controller.depth) == (4, 4)
    fixed = Controller(4, most=32, cores=16)
    assert not fixed.decide(waiting)
    for _ in range(5):
        fixed.decide(waiting)
    assert fixed.log == [
        "4 workers, settled: training waits 25 % of the time, and the workers wait too: for the training process to "
        "accept batches, or for their turn."
    ]


def test_a_count_that_the_system_refused_is_not_tried_again() -> None:
    controller = Controller(2, most=32, cores=16)
    slow = Plant(0.5, 0.001, cores=16)
    run(controller, slow, periods=1)
    assert controller.count == 4
    controller.is_refused(3)
    counts = run(controller, slow, periods=20)
    assert set(counts) == {3}
    assert controller.log[1] == "4 -> 3 workers: the system refused to start more."
