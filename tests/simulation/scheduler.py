"""Orders and schedulers of simulated worlds: feedline's own, and one that a user might write."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from feedline.abc.sampler import BatchSampler, Sampler
from feedline.abc.scheduler import Scheduler, WorkerView
from feedline.order.order import BatchOrder, Order, SampleOrder, SpanOrder, StreamOrder
from feedline.samplers import RandomSampler, SequentialSampler, distribute
from feedline.schedulers import InOrder, Unordered
from feedline.simulation.scenario import IN_ORDER, UNORDERED
from feedline.system.ranks import Share
from feedline.types import StreamSharding
from tests.simulation.dataset import Ragged
from tests.simulation.scenario import OWN, SHARED, Scenario


def order_of(scenario: Scenario, share: Share) -> Order:
    """Return the order of the batches that one rank delivers."""
    if scenario.kind == OWN:
        return StreamOrder(scenario.batch_size)
    if scenario.kind == SHARED:
        return SpanOrder(StreamSharding(scenario.batch_size or 1, share, scenario.drop_last))
    whole: Sampler | BatchSampler
    if scenario.ragged:
        whole = Ragged(scenario.samples, scenario.batch_size or 1)
    elif scenario.shuffled:
        whole = RandomSampler(range(scenario.samples), seed=scenario.seed)
    else:
        whole = SequentialSampler(range(scenario.samples))
    own = whole if share.world_size == 1 else distribute(whole, share.rank, share.world_size, tail=scenario.tail)
    if isinstance(own, BatchSampler):
        return BatchOrder(own)
    return SampleOrder(own, scenario.batch_size, drop_last=scenario.drop_last)


def scheduler_of(scenario: Scenario, dice: random.Random) -> Scheduler | None:
    """Return the scheduler of the scenario; None for the loader's default."""
    if scenario.order == IN_ORDER:
        return None if scenario.deepens and scenario.depth == 2 else InOrder()
    return Unordered() if scenario.order == UNORDERED else RandomScheduler(dice)


class RandomScheduler(Scheduler):
    """A user's scheduler that chooses at random, within the contract."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._workers: Sequence[WorkerView] = ()

    def assign(self, ordinal: int, indices: object, workers: Sequence[WorkerView]) -> int | None:
        self._workers = workers
        return None if self._may_wait() else self._dice.randrange(len(workers))

    def take(self, ready: Collection[int], expected: int) -> int | None:
        return None if not ready or self._may_wait() else self._dice.choice(sorted(ready))

    def relieve(self, workers: Sequence[WorkerView], now_s: float, typical_s: float) -> tuple[int, int] | None:
        idle = [worker.id for worker in workers if not worker.outstanding]
        busy = [worker.id for worker in workers if worker.outstanding > 1]
        return (self._dice.choice(busy), self._dice.choice(idle)) if idle and busy else None

    def _may_wait(self) -> bool:
        return any(worker.outstanding for worker in self._workers) and self._dice.random() < 0.4
