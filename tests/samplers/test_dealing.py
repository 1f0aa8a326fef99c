"""Dealing: batches of equal cost. The figures are those of docs/guide/equal-steps.md, on the costs that they name."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feedline.samplers.dealing import deal, fitted, pack, rounded
from tests.sampling import examples

RANKS, BATCH, WINDOW = 64, 8, 16
SAMPLES = RANKS * BATCH * WINDOW


def log_normal(seed: int) -> NDArray[np.float64]:
    """Return costs of which the largest are cut at 8 times the mean."""
    costs: NDArray[np.float64] = np.random.default_rng(seed).lognormal(0, 1, SAMPLES) / np.exp(0.5)
    return np.minimum(costs, 8)


def slowest(costs: NDArray[np.float64], rows: NDArray[np.int64], ranks: int = RANKS) -> NDArray[np.float64]:
    """Return the cost of the slowest rank relative to the mean of its step, of each kind, in each step."""
    loads = costs.reshape(len(costs), -1)[rows].sum(1).reshape(-1, ranks, costs.size // len(costs))
    ratios: NDArray[np.float64] = loads.max(1) / loads.mean(1)
    return ratios


def test_steps_of_log_normal_costs_are_equal() -> None:
    in_order = np.arange(SAMPLES).reshape(-1, BATCH)
    ratios, shuffled = [], []
    for seed in range(6):
        costs = log_normal(seed)
        ratios.append(slowest(costs, deal(rounded(costs[:, None]), RANKS * WINDOW, RANKS)))
        shuffled.append(slowest(costs, in_order))
    assert np.mean(shuffled) > 2.1
    assert np.mean(ratios) < 1.005
    assert np.max(ratios) < 1.03


def test_rows_packed_to_one_length_are_equal_by_the_squares_of_their_documents() -> None:
    generator = np.random.default_rng(1)
    costs = np.empty(SAMPLES)
    for row in range(SAMPLES):
        lengths = generator.lognormal(5, 1, 60).clip(max=4096)
        lengths = lengths[: np.searchsorted(np.cumsum(lengths), 4096)]
        costs[row] = (lengths**2).sum() + (4096 - lengths.sum()) ** 2
    ratios = slowest(costs, deal(rounded(costs[:, None]), RANKS * WINDOW, RANKS))
    assert ratios.mean() < 1.03
    assert slowest(costs, np.arange(SAMPLES).reshape(-1, BATCH)).mean() > 1.4


def test_two_kinds_of_cost_are_both_balanced() -> None:
    images = np.where(np.random.default_rng(3).random(SAMPLES) < 0.5, 0, log_normal(2))
    costs = np.stack([log_normal(1), images], axis=1)
    ratios = slowest(costs, deal(rounded(costs), RANKS * WINDOW, RANKS))
    assert ratios.mean() < 1.1
    assert slowest(costs, np.arange(SAMPLES).reshape(-1, BATCH)).mean() > 2.2


def test_a_kind_that_no_sample_of_a_window_has_does_not_matter() -> None:
    costs = np.stack([log_normal(1), np.zeros(SAMPLES)], axis=1)
    rows = deal(rounded(costs), RANKS * WINDOW, RANKS)
    loads = costs[:, 0][rows].sum(1).reshape(-1, RANKS)
    assert (loads.max(1) / loads.mean(1)).mean() < 1.01


def test_micro_batches_of_a_step_are_as_equal_as_its_ranks() -> None:
    costs = log_normal(4)
    rows = deal(rounded(costs[:, None]), RANKS * WINDOW, 4 * RANKS)
    assert slowest(costs, rows, 4 * RANKS).max() < 1.1


@settings(max_examples=examples(100), deadline=None)
@given(
    costs=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 50)), min_size=1, max_size=80),
    kinds=st.integers(1, 2),
    data=st.data(),
)
def test_every_sample_is_dealt_once_and_batches_differ_by_one(
    costs: list[tuple[int, int]], kinds: int, data: st.DataObject
) -> None:
    batches = data.draw(st.integers(1, len(costs)))
    group = data.draw(st.integers(1, batches))
    table = np.array(costs)[:, :kinds]
    rows = deal(rounded(table), batches, group)
    counts = (rows >= 0).sum(1)
    assert sorted(rows[rows >= 0].tolist()) == list(range(len(costs)))
    assert counts.max() - counts.min() <= 1
    assert rows.shape == (batches, counts.max())


@settings(max_examples=examples(100), deadline=None)
@given(
    costs=st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1)), min_size=1, max_size=60),
    kinds=st.integers(1, 2),
    data=st.data(),
)
def test_packed_batches_keep_the_limits(costs: list[tuple[int, float]], kinds: int, data: st.DataObject) -> None:
    batches = data.draw(st.integers(1, len(costs)))
    limits = np.array([data.draw(st.integers(100, 400)), 1.5])[:kinds]
    values = np.array(costs)[:, :kinds]
    integers, limit = fitted(values, limits)
    packed = pack(integers, batches, limit)
    if packed is None:
        assert batches < len(costs)
        return
    assert sorted(position for row in packed for position in row) == list(range(len(costs)))
    assert all(packed)
    assert all((values[row].sum(0) <= limits * (1 + 1e-9)).all() for row in packed)


@pytest.mark.parametrize("size", [1, 5, 600])
def test_equal_costs_and_none_are_dealt_evenly(size: int) -> None:
    for cost in (0, 7):
        rows = deal(rounded(np.full((4 * size, 1), cost)), 4, 2)
        assert sorted(rows.reshape(-1).tolist()) == list(range(4 * size))


def test_batches_of_a_thousand_samples_take_little_memory_and_are_equal() -> None:
    costs = np.random.default_rng(0).lognormal(0, 1, 64 * 1000)
    ratios = slowest(costs, deal(rounded(costs[:, None]), 64, 8), 8)
    assert ratios.max() < 1.001
