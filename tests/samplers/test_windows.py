"""Windows: each sample once, whichever ranks enter an epoch wherever, and as often as they change."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.errors import BadOption, BadState
from feedline.samplers import BalancedBatches
from feedline.samplers.windows import Window, Windows
from feedline.types import Key
from tests.sampling import examples

MOST = 40
"""The largest cost."""
KEY = Key(5, 2)

costs_lists = st.lists(st.integers(0, MOST), min_size=1, max_size=90)


@st.composite
def dealings(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the options of `BalancedBatches`."""
    tail = draw(st.sampled_from(["pad", "exact", "drop"]))
    by_size = {"batch_size": draw(st.integers(2, 5)), "drop_last": tail != "exact" and draw(st.booleans())}
    by_cost = {"max_cost": draw(st.integers(MOST, 3 * MOST))}
    return {
        "world_size": draw(st.integers(1, 5)),
        "window": draw(st.integers(1, 4)),
        "micro_batches": draw(st.integers(1, 3)),
        "tail": tail,
        **draw(st.sampled_from([by_size, by_cost])),
    }


def row_of(costs: Any, dealing: dict[str, Any], state: Any = None, **options: Any) -> Windows:
    return BalancedBatches(costs, rank=0, seed=KEY.seed, **dealing).windows(KEY, state=state, **options)


def steps_of(row: Windows, count: int | None = None) -> list[list[int]]:
    """Return the samples of all ranks in each step, having checked that every rank has some."""
    steps: list[list[int]] = []
    while count is None or len(steps) < count:
        batches = [row.batch(len(steps), rank) for rank in range(row.dealing.world_size)]
        assert len({batch is None for batch in batches}) == 1, "ranks must end together"
        if batches[0] is None:
            break
        assert all(len(batch) for batch in batches if batch is not None)
        steps.append([index for batch in batches if batch is not None for index in batch.tolist()])
    return steps


def saved(row: Windows, step: int) -> Any:
    return json.loads(json.dumps(row.state(step)))


def check_last(costs: list[int], before: Counter[int], rest: Counter[int], dealing: dict[str, Any]) -> None:
    """Assert that the last part of an epoch has the samples that are left, except for what its tail allows."""
    left = Counter(range(len(costs))) - before
    if dealing.get("drop_last"):
        assert (left - rest).total() < dealing["world_size"] * dealing["batch_size"]
        assert (rest - left).total() < dealing["world_size"]
    elif dealing["tail"] == "exact":
        assert rest == left
    elif dealing["tail"] == "pad":
        assert left <= rest
        assert (rest - left).total() < dealing["world_size"]
    else:
        assert rest <= left
        assert (left - rest).total() < dealing["world_size"]


@settings(max_examples=examples(200), deadline=None)
@given(costs=costs_lists, data=st.data())
def test_each_sample_comes_once_however_often_the_ranks_change(costs: list[int], data: st.DataObject) -> None:
    state: Any = None
    delivered: Counter[int] = Counter()
    for _ in range(data.draw(st.integers(0, 4), label="changes")):
        dealing = data.draw(dealings())
        try:
            row = row_of(costs, dealing, state)
            steps = steps_of(row)
        except BadOption:
            assert dealing["tail"] == "exact"
            continue
        taken = data.draw(st.integers(0, max(0, len(steps) - 1)), label="steps")
        delivered += Counter(index for step in steps[:taken] for index in step)
        assert max(delivered.values(), default=1) == 1, "a sample came twice before the last step"
        state = saved(row, taken)
        assert state["consumed"] == delivered.total()
    dealing = data.draw(dealings())
    try:
        rest = Counter(index for step in steps_of(row_of(costs, dealing, state)) for index in step)
    except BadOption:
        assert dealing["tail"] == "exact"
        return
    check_last(costs, delivered, rest, dealing)


@settings(max_examples=examples(60), deadline=None)
@given(costs=costs_lists, dealing=dealings(), data=st.data())
def test_the_same_ranks_continue_exactly_from_any_step(
    costs: list[int], dealing: dict[str, Any], data: st.DataObject
) -> None:
    state: Any = None
    if data.draw(st.booleans(), label="left over"):
        before = row_of(costs, {"world_size": 3, "batch_size": 2, "window": 3, "tail": "pad"})
        state = saved(before, data.draw(st.integers(0, before.count()), label="steps"))
    try:
        row = row_of(costs, dealing, state)
        steps = steps_of(row)
    except BadOption:
        return
    if "batch_size" in dealing:
        assert row.count() == len(steps)
    for done in range(len(steps) + 1):
        resumed = row_of(costs, dealing, saved(row, done))
        assert steps_of(resumed) == steps[done:]
        if done < len(steps):
            assert resumed.samples_before(0) == row.samples_before(done)
        assert [saved(resumed, step) for step in range(len(steps) - done + 1)] == [
            saved(row, step) for step in range(done, len(steps) + 1)
        ]


@settings(max_examples=examples(40), deadline=None)
@given(costs=st.lists(st.integers(0, MOST), min_size=5, max_size=30), dealing=dealings(), data=st.data())
def test_an_endless_row_goes_through_epoch_after_epoch(
    costs: list[int], dealing: dict[str, Any], data: st.DataObject
) -> None:
    row = row_of(costs, dealing, endless=True)
    taken = data.draw(st.integers(0, 30))
    other = data.draw(dealings())
    resumed = row_of(costs, other, saved(row, taken), endless=True)
    counts = Counter(
        index for steps in (steps_of(row, taken), steps_of(resumed, 30)) for step in steps for index in step
    )
    in_windows = sum(len(each.window(each.locate(0)[0]).places) + each.dealing.world_size for each in (row, resumed))
    assert max(counts.values()) - min(counts[index] for index in range(len(costs))) <= 2 + in_windows // len(costs)


def test_places_of_steps_are_unique_for_any_number_of_ranks() -> None:
    costs = [1 + index % 7 for index in range(200)]
    row = row_of(costs, {"world_size": 4, "batch_size": 3, "window": 4, "tail": "pad"})
    before = [row.samples_before(step) for step in range(6)]
    resumed = row_of(costs, {"world_size": 3, "max_cost": 20, "window": 4, "tail": "pad"}, row.state(6))
    before += [resumed.samples_before(step) for step in range(len(steps_of(resumed)))]
    assert all(np.diff(before) >= 3)


def test_positions_are_read_without_dealing_earlier_windows_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers prefetch: batches of later windows are requested before the position in an earlier one is saved."""
    dealt: list[int] = []
    original = Windows._window_of_batches

    def note(self: Windows, number: int) -> Window:
        dealt.append(number)
        return original(self, number)

    monkeypatch.setattr(Windows, "_window_of_batches", note)
    row = row_of([1] * 400, {"world_size": 2, "batch_size": 2, "window": 4, "tail": "pad"})
    for step in range(80):
        row.batch(step, 0)
    for step in range(80):
        row.state(step)
    assert dealt == list(range(20))


def test_a_position_far_inside_is_entered_without_what_comes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = np.ones(1_000_000, np.int8)
    dealing = {"world_size": 4, "batch_size": 8, "window": 16, "tail": "pad"}
    row = row_of(costs, dealing)
    row.batch(30_000, 1)
    state = row.state(30_000)
    assert len(row._summaries) == 1
    assert row_of(costs, dealing, state).batch(0, 1).tolist() == row.batch(30_000, 1).tolist()  # type: ignore[union-attr]


def test_other_costs_are_noticed_inside_a_window() -> None:
    """A function has no checksum, so the loader's check of the sampler does not notice."""
    dealing = {"world_size": 2, "batch_size": 2, "window": 8, "num_samples": 60}
    state = row_of(lambda index: index % 7, dealing).state(3)
    for other in (dealing, {**dealing, "world_size": 3}):
        with pytest.raises(BadState, match="costs have changed"):
            row_of(lambda index: index % 5, other, state)


def test_other_costs_are_noticed_between_the_windows_of_what_was_left_over() -> None:
    """Costs decide how long a window is with `max_cost`, so the position means other samples with other costs."""

    def dealing(world_size: int, **options: Any) -> dict[str, Any]:
        return {"world_size": world_size, "window": 2, "num_samples": 400, **options}

    before = row_of(lambda index: 5, dealing(8, batch_size=8, window=8)).state(1)
    row = row_of(lambda index: 5, dealing(1, max_cost=30), before)
    step = next(step for step in range(1, 99) if row.locate(step) == (1, 0))
    state = saved(row, step)
    assert row_of(lambda index: 5, dealing(1, max_cost=30), state).batch(0, 0) is not None
    for world_size in (1, 2):
        with pytest.raises(BadState, match="costs have changed"):
            row_of(lambda index: 7, dealing(world_size, max_cost=30), state)


def test_early_positions_are_found_after_many_windows() -> None:
    row = row_of([1] * 4000, {"world_size": 1, "batch_size": 2, "window": 2, "tail": "pad"})
    states = [row.state(step) for step in range(5)]
    for step in range(2000):
        row.batch(step, 0)
    assert [row.state(step) for step in range(5)] == states


def test_max_cost_is_kept_and_batches_are_full() -> None:
    costs = np.random.default_rng(0).lognormal(3, 1, 5000).clip(max=200).astype(int)
    row = row_of(costs, {"world_size": 8, "max_cost": 400, "window": 16, "tail": "exact"})
    loads = [int(costs[row.batch(step, rank)].sum()) for step in range(len(steps_of(row))) for rank in range(8)]
    assert max(loads) <= 400
    assert sum(loads) == costs.sum()
    assert np.mean(loads) > 0.85 * 400
    assert abs(row.count() - len(loads) // 8) <= 2
