"""Plans over samplers that are not feedline's."""

from __future__ import annotations

import functools

import pytest

from feedline.errors import BadState
from feedline.order.foreign import ForeignOrder, ForeignPlan
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

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


def test_draw_keys_differ_on_all_ranks_and_survive_a_resumption() -> None:
    def keys(consumed: int, numbers: range) -> list[int]:
        shares = [functools.partial(Share, rank, 3) for rank in range(3)]
        return [
            ForeignOrder(range(9), share=share).plan(Entry(Key(0, 0), 5, {"consumed": consumed})).draw(number).key
            for number in numbers
            for share in shares
        ]

    assert len(set(keys(0, range(10)))) == 30
    assert keys(4, range(6)) == keys(0, range(4, 10))


def test_states_of_batches_that_were_delivered_are_forgotten() -> None:
    entry = Entry(Key(0, 0), 0)
    plan = ForeignOrder(Stateful(1000)).plan(entry)
    for number in range(500):
        entry.progress.delivered = max(0, number - 4)
        next(plan)
    assert len(plan._states) < 10


def test_the_batches_before_a_state_are_skipped_or_said_to_be_too_few() -> None:
    def plan(consumed: int) -> ForeignPlan:
        return ForeignOrder(range(6)).plan(Entry(Key(0, 0), 0, {"consumed": consumed}))

    assert list(plan(4)) == [4, 5]
    with pytest.raises(BadState, match="9 batches were consumed, but range has only 6"):
        plan(9)
