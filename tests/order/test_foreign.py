"""Plans over samplers that are not feedline's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadState
from feedline.order import foreign
from feedline.order.foreign import ForeignPlan, skip
from feedline.types import Share


class Progress:
    delivered = 0


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
        return [
            ForeignPlan(iter(()), draw_key=5, share=Share(rank, 3), consumed=consumed).draw(number).key
            for number in numbers
            for rank in range(3)
        ]

    assert len(set(keys(0, range(10)))) == 30
    assert keys(4, range(6)) == keys(0, range(4, 10))


# -- states ---


@given(st.integers(0, 10), st.integers(0, 5))
def test_the_state_counts_delivered_batches_not_requested_ones(delivered: int, ahead: int) -> None:
    progress = Progress()
    plan = plan_of(Stateful(), progress=progress)
    for number in range(delivered + ahead):
        progress.delivered = min(number, delivered)
        next(plan, None)
    progress.delivered = delivered
    state = plan.state(delivered)
    assert state["sampler_state"] == {"place": max(1, delivered)}
    assert state.get("held", []) == ([] if delivered else [0]), (
        "before the first batch, the batch itself and the state after it"
    )


def test_states_of_batches_that_were_delivered_are_forgotten() -> None:
    progress = Progress()
    plan = plan_of(Stateful(1000), progress=progress)
    for number in range(500):
        progress.delivered = max(0, number - 4)
        next(plan)
    assert len(plan._states) < 10


# -- skipping ---


def test_skip_skips_items_or_says_that_there_are_too_few() -> None:
    assert list(skip(iter(range(6)), 4, "Mine")) == [4, 5]
    with pytest.raises(BadState, match="9 batches were consumed, but Mine has only 6"):
        list(skip(iter(range(6)), 9, "Mine"))


class Clock:
    """A stand-in for the `time` module; each call takes half a second."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        self.now_s += 0.5
        return self.now_s


def test_a_slow_skip_warns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "time", Clock())
    with pytest.warns(UserWarning, match=r"has to skip 10,000 batches of indices: Mine cannot start") as warned:
        skip(iter(range(20_000)), 10_000, "Mine")
    assert len(warned) == 1
