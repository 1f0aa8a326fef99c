"""The order of `BalancedBatches`: states that name batches by number, and batches that a framework skips."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from feedline import DataLoader
from feedline.errors import BadState
from feedline.order.order import BalancedOrder, Entry
from feedline.samplers import BalancedBatches
from feedline.types import Key

COSTS = [1 + index % 5 for index in range(50)]


def order_of(**options: Any) -> BalancedOrder:
    options = {"rank": 0, "world_size": 2, "window": 3, "seed": 1, **options}
    return BalancedOrder(BalancedBatches(COSTS, 4, **options))


@pytest.mark.parametrize("done", [0, 2, 3])
def test_a_state_with_batches_out_of_order_needs_the_same_dealing(done: int) -> None:
    order = order_of()
    plan = order.plan(Entry(Key(1, 0), 0))
    state = json.loads(json.dumps({**plan.state(done), **order.expected(), "stride": order.stride()}))
    order_of().check(state)
    for options in ({"window": 4}, {"rank": 1}, {"micro_batches": 3}, {"tail": "drop"}):
        with pytest.raises(BadState):
            order_of(**options).check(state)


# Any: the contents of batches.
def _lists(plan: Iterable[Any]) -> list[list[int]]:
    return [block.array.tolist() for block in plan]


@pytest.mark.parametrize("options", [{}, {"batch_size": None, "max_cost": 14}])
def test_skipped_batches_are_those_at_the_beginning(options: dict[str, Any]) -> None:
    """Accelerate resumes by skipping; see `Order.skips`."""
    sampler = BalancedBatches(COSTS, **{"batch_size": 4, "rank": 0, "world_size": 2, "window": 2, "seed": 1, **options})
    whole = list(sampler)
    order = BalancedOrder(sampler)
    plan = order.plan(Entry(Key(1, 0), 0, order.state_after(3)))
    assert _lists(plan) == whole[3:]
    again = order.plan(Entry(Key(1, 0), 0, order.plan(Entry(Key(1, 0), 0, order.state_after(3))).state(1)))
    assert _lists(again) == whole[4:]


def test_ranks_and_steps_have_random_numbers_of_their_own() -> None:
    plans = [order_of(rank=rank).plan(Entry(Key(1, 0), 7)) for rank in range(2)]
    assert len({plan.draw(step).key for plan in plans for step in range(6)}) == 12


def test_batches_out_of_order_are_resumed() -> None:
    def loader() -> Any:
        return DataLoader(range(50), batch_sampler=order_of().sampler, num_workers=2, in_order=False)

    first = loader()
    iterator = iter(first)
    taken = [next(iterator).tolist() for _ in range(3)]
    second = loader()
    second.load_state_dict(first.state_dict())
    del iterator
    rest = [batch.tolist() for batch in second]
    assert sorted(taken + rest) == sorted(order_of().sampler)
