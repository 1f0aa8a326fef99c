"""Plans over samplers that are not feedline's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadState
from feedline.order import foreign
from feedline.order.foreign import ForeignPlan, skip
from feedline.types import Share

pytestmark = pytest.mark.sample(4)


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


# -- indices ---


def test_items_of_the_sampler_are_passed_on_unchanged() -> None:
    items = [[3, 1], "ab", (2,), None, 7]
    assert list(ForeignPlan(iter(items))) == items


def test_items_of_the_sampler_are_copied() -> None:
    buffer = [0, [0]]

    def sampler() -> Iterator[list[Any]]:
        for number in range(3):
            buffer[:] = [number, buffer[1]]
            buffer[1][0] = number  # type: ignore[index]
            yield buffer

    assert list(ForeignPlan(sampler())) == [[0, [0]], [1, [1]], [2, [2]]]


def test_the_sampler_is_read_no_further_than_the_next_batch() -> None:
    asked: list[int] = []

    def sampler() -> Iterator[int]:
        for number in count():
            asked.append(number)
            yield number

    plan = ForeignPlan(sampler())
    plan.state(0)
    assert asked == []
    assert [next(plan), next(plan)] == [0, 1]
    plan.state(1)
    assert asked == [0, 1]


def test_an_error_of_the_sampler_is_raised_unchanged() -> None:
    def sampler() -> Iterator[int]:
        yield 0
        raise LookupError("no more shards")

    plan = ForeignPlan(sampler())
    next(plan)
    with pytest.raises(LookupError, match="no more shards"):
        next(plan)


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


def test_batches_are_counted_from_the_beginning_of_the_epoch() -> None:
    plan = ForeignPlan(iter(range(10)), consumed=7)
    assert plan.state(0) == {"unit": "own batches", "consumed": 7}
    next(plan)
    assert plan.state(1) == {"unit": "own batches", "consumed": 8}


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


def test_a_state_does_not_change_with_the_sampler() -> None:
    plan = plan_of(Stateful())
    next(plan)
    state = plan.state(1)
    next(plan)
    assert state["sampler_state"] == {"place": 1}
    state["sampler_state"]["place"] = 99
    assert plan.state(1)["sampler_state"] == {"place": 1}


def test_states_of_batches_that_were_delivered_are_forgotten() -> None:
    progress = Progress()
    plan = plan_of(Stateful(1000), progress=progress)
    for number in range(500):
        progress.delivered = max(0, number - 4)
        next(plan)
    assert len(plan._states) < 10


@pytest.mark.parametrize("first", ["batch", "state"])
def test_the_samplers_state_is_looked_up_when_it_is_first_needed(first: str) -> None:
    """Some iterators are created with the first batch, so the lookup must not come earlier."""
    stateful = Stateful()
    asked: list[str] = []

    def find() -> Callable[[], Any]:
        asked.append("once")
        return stateful.current_state

    plan = ForeignPlan(stateful, find_snapshot=find)
    assert asked == []
    if first == "state":
        assert plan.state(0)["sampler_state"] == {"place": 1}
    assert next(plan) == 0
    assert next(plan) == 1
    assert asked == ["once"]
    assert [plan.state(done)["sampler_state"]["place"] for done in (0, 1, 2)] == [1, 1, 2]


def test_a_sampler_without_a_state_is_resumed_by_counting() -> None:
    plan = ForeignPlan(iter(range(3)), find_snapshot=lambda: None)
    next(plan)
    assert plan.state(1) == {"unit": "own batches", "consumed": 1}


class Ends(Stateful):
    """Moves on to its next epoch with its last item."""

    ended = False

    def __next__(self) -> int:
        if self.ended:
            raise StopIteration
        item = super().__next__()
        if self.state["place"] == self.stop:
            self.ended = True
            self.state = {"place": 0}
        return item


def test_after_the_last_batch_the_state_before_it_is_kept() -> None:
    """The sampler itself is already in its next epoch, which is not where this one resumes."""
    plan = plan_of(Ends(3))
    assert list(plan) == [0, 1, 2]
    state = plan.state(3)
    assert (state["consumed"], state["sampler_state"], state["redraw"]) == (3, {"place": 2}, 1)
    assert plan.state(2)["redraw"] == 0


def test_a_plan_entered_after_the_last_batch_has_the_same_state() -> None:
    entered = {"sampler_state": {"place": 2}, "redraw": 1}
    plan = plan_of(Stateful(3, place=3), consumed=3, entered=entered)
    assert plan.state(0) == {"unit": "own batches", "consumed": 3, **entered}
    assert list(plan) == []
    assert plan.after() == {**entered, "finish": True}
    entered["sampler_state"]["place"] = 99  # type: ignore[index]
    assert entered != plan.state(0)


# -- the origin of an order ---


def drawing(origin: dict[str, Any], drawn: list[str]) -> Iterator[int]:
    """A sampler that draws its order, and records the seed, with the first index."""
    drawn.append("once")
    origin.setdefault("seed", 42)
    yield from range(3)


def test_the_origin_of_an_order_is_part_of_every_state() -> None:
    origin: dict[str, Any] = {}
    drawn: list[str] = []
    plan = ForeignPlan(drawing(origin, drawn), origin=origin)
    assert drawn == []
    assert plan.state(0)["seed"] == 42, "a state before the first batch draws it"
    assert list(plan) == [0, 1, 2]
    assert drawn == ["once"]
    assert plan.state(2) == {"unit": "own batches", "consumed": 2, "seed": 42}


def test_an_empty_order_has_no_origin() -> None:
    plan = ForeignPlan(iter(()), origin={})
    assert plan.state(0) == {"unit": "own batches", "consumed": 0}
    assert list(plan) == []


# -- after the epoch ---


def test_what_is_kept_after_an_epoch() -> None:
    plain = ForeignPlan(iter(range(2)))
    list(plain)
    assert plain.after() == {}
    noting = ForeignPlan(iter(range(2)), after=lambda: {"next": 5})
    list(noting)
    assert noting.after() == {"next": 5}
    stateful = plan_of(Stateful(3))
    list(stateful)
    assert stateful.after() == {"sampler_state": {"place": 2}, "held": [], "redraw": 1, "finish": True}


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


def test_a_fast_skip_does_not_warn() -> None:
    skip(iter(range(20_000)), 10_000, "Mine")
