"""Plans over samplers that are not feedline's."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from feedline.errors import BadState
from feedline.order.foreign import ForeignPlan, skip
from feedline.order.order import Entry
from feedline.system.ranks import Share
from feedline.types import Key


class Stateful:
    """Yields 0, 1, ... below `stop`; its state is always the same, changing object."""

    def __init__(self, stop: int = 10, place: int = 0) -> None:
        self.stop = stop
        self.state = {"place": place}

    def __iter__(self) -> Stateful:
        return self

    def __next__(self) -> int:
        if self.state["place"] >= self.stop:
            raise StopIteration
        self.state["place"] += 1
        return self.state["place"] - 1

    def current_state(self) -> dict[str, int]:
        return self.state


def plan_of(indices: Stateful, **options: Any) -> ForeignPlan:
    return ForeignPlan(indices, find_snapshot=lambda: indices.current_state, **options)


# -- random numbers ---


def test_draw_keys_differ_on_all_ranks_and_survive_a_resumption() -> None:
    def keys(consumed: int, numbers: range) -> list[int]:
        shares = [functools.partial(Share, rank, 3) for rank in range(3)]
        return [
            ForeignPlan(iter(()), draw_key=5, share=share, consumed=consumed).draw(number).key
            for number in numbers
            for share in shares
        ]

    assert len(set(keys(0, range(10)))) == 30
    assert keys(4, range(6)) == keys(0, range(4, 10))


# -- states ---


def test_states_of_batches_that_were_delivered_are_forgotten() -> None:
    entry = Entry(Key(0, 0), 0)
    plan = plan_of(Stateful(1000), entry=entry)
    for number in range(500):
        entry.progress.delivered = max(0, number - 4)
        next(plan)
    assert len(plan._states) < 10


# -- skipping ---


def test_skip_skips_items_or_says_that_there_are_too_few() -> None:
    assert list(skip(iter(range(6)), 4, "Mine")) == [4, 5]
    with pytest.raises(BadState, match="9 batches were consumed, but Mine has only 6"):
        list(skip(iter(range(6)), 9, "Mine"))
