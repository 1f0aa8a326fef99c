"""Deal samples into the batches of all ranks so that batches that run at the same time cost the same.

Costs are integers here, so that every machine deals alike: the sum of floats depends on the processor. They have a row
for each sample, and a column for each kind of cost.

The most expensive samples are dealt first, each to the cheapest batch with room. The batches, sorted by cost, are then
cut into groups that run at the same time. So batches that are expensive because of one long sample wait for each
other. Finally the expensive and cheap batches of a group swap samples.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

Costs = NDArray[np.int64]
Values = NDArray[np.int64] | NDArray[np.float64]
Rows = NDArray[np.int64]
"""Batches of positions in the costs; -1 where a batch has one sample less than others."""

_BITS = 20
"""Bits of the largest rounded cost, so that squares of the costs of a batch fit into 64 bits."""

_SWAPS = 6
"""Rounds of swaps within a group. With log-normal costs (sigma 1, cut at 8 times the mean), batches of 8 and 64 ranks,
the slowest rank takes 0.3 % longer than the mean of its step with no swaps, 0.1 % after 4 rounds, and the same after 8.
"""

_VECTOR_SWAPS = 12
"""Rounds of swaps between all batches, if there are several kinds of cost: dealing looks only at their sum. With two
kinds, one of them 0 for half of the samples, the slowest rank takes 32 % longer than the mean with no rounds, 9 % after
6, 8 % after 12, 7 % after 24.
"""


_PAIRS = 1 << 22
"""Pairs of samples that are compared at a time, at most: 32 MB."""


def rounded(values: Values) -> Costs:
    """Return costs as integers of at least 1. Several columns have about the same mean.

    Example:
        >>> rounded(np.array([[1.0], [0.5]])).tolist()
        [[1048576], [524288]]
    """
    largest = values.max(axis=0, initial=0)  # a maximum is exact, unlike a mean
    scaled = np.rint(values * ((1 << _BITS) / np.where(largest > 0, largest, 1))).astype(np.int64)
    if scaled.shape[1] > 1:
        scaled = (scaled << _BITS) // np.maximum(scaled.sum(0) // len(scaled), 1)
        scaled >>= max(0, int(scaled.max()).bit_length() - _BITS - 4)
    # Batches that are dealt costs of 0 would stay the cheapest, and take all of them.
    positive: Costs = np.maximum(scaled, 1)
    return positive


def deal(costs: Costs, batches: int, group: int) -> Rows:
    """Return batches of equal size, or one sample less, each group with batches of similar cost.

    Args:
        costs: from `rounded`; at least one for each batch.
        batches: how many.
        group: how many consecutive batches run at the same time.

    Example:
        >>> [sorted(row) for row in deal(np.array([[8], [7], [2], [1]]), 2, 2).tolist()]
        [[0, 3], [1, 2]]
    """
    rows = _deal_cheapest_first(costs.sum(1), batches)
    costs = np.concatenate([costs, np.zeros((1, costs.shape[1]), np.int64)])  # the cost of -1
    if costs.shape[1] > 1:
        _swap(rows, costs, batches, _VECTOR_SWAPS)
    rows = rows[np.argsort(-costs[rows].sum(1).max(1), kind="stable")]
    _swap(rows, costs, group, _SWAPS)
    return rows


def _deal_cheapest_first(costs: NDArray[np.int64], batches: int) -> Rows:
    size = -(-len(costs) // batches)
    full = len(costs) - batches * (size - 1)
    room = [size - 1] * full + [size - 2] * (batches - full)
    order = np.argsort(-costs, kind="stable")
    by_cost = costs[order].tolist()
    # Each batch begins with one of the most expensive samples.
    chosen = list(range(batches))
    heap = [(load, number) for number, load in enumerate(by_cost[:batches]) if room[number]]
    heapq.heapify(heap)
    replace, pop = heapq.heapreplace, heapq.heappop
    for cost in by_cost[batches:]:
        load, number = heap[0]
        chosen.append(number)
        room[number] -= 1
        if room[number]:
            replace(heap, (load + cost, number))
        else:
            pop(heap)
    by_batch = order[np.argsort(np.array(chosen, np.int64), kind="stable")]
    rows = np.full((batches, size), -1)
    rows[:full] = by_batch[: full * size].reshape(full, size)
    rows[full:, : size - 1] = by_batch[full * size :].reshape(batches - full, size - 1)
    return rows


def _swap(rows: Rows, costs: Costs, group: int, rounds: int) -> None:
    """Bring the costs of rows of the same group closer together, in place.

    In each round the most expensive row is paired with the cheapest, the second with the second cheapest, and so on.
    Each pair swaps those two samples that decrease the sum of its squared costs most.
    """
    batches = len(rows)
    starts = np.arange(batches) // group * group
    partner = starts + np.minimum(starts + group, batches) - 1 - np.arange(batches)
    first = np.flatnonzero(np.arange(batches) < partner)
    second = partner[first]
    if len(first) == 0:
        return
    loads = costs[rows].sum(1)
    kinds = costs.shape[1]
    # Of large batches, only some samples are candidates: their number of pairs would be too large, and dealing alone
    # makes large batches equal.
    candidates = min(32, max(4, int((_PAIRS / max(1, len(first) * kinds)) ** 0.5)))
    rows = rows[:, :: -(-rows.shape[1] // candidates)]
    own = costs[rows]
    is_gap = rows < 0
    has_gaps = bool(is_gap.any())
    for number in range(rounds):
        by_cost = np.lexsort((-loads[:, number % kinds], starts))
        above, below = by_cost[first], by_cost[second]
        moved = own[above][:, :, None, :] - own[below][:, None, :, :]
        gain = (moved * ((loads[above] - loads[below])[:, None, None, :] - moved)).sum(3)
        if has_gaps:
            gain[is_gap[above][:, :, None] | is_gap[below][:, None, :]] = 0
        gain = gain.reshape(len(above), -1)
        best = gain.argmax(1)
        better = np.flatnonzero(gain[np.arange(len(above)), best] > 0)
        above, below = above[better], below[better]
        here, there = np.divmod(best[better], rows.shape[1])
        for values in (rows, own):
            values[above, here], values[below, there] = values[below, there].copy(), values[above, here].copy()
        change = own[below, there] - own[above, here]
        loads[above] += -change
        loads[below] += change


def fitted(values: Values, limits: Values) -> tuple[Costs, int]:
    """Return costs as integers, and the limit that each column then has.

    Integers of one kind remain as they are. Others are rounded down to a trillionth of their limit.

    Example:
        >>> costs, limit = fitted(np.array([[5, 0.5]]), np.array([10, 1]))
        >>> (costs / limit).tolist()
        [[0.5, 0.5]]
    """
    if len(limits) == 1 and values.dtype.kind == "i":
        return values.astype(np.int64), int(limits[0])
    limit = 1 << 40
    return np.floor(values * (limit / limits.astype(np.float64))).astype(np.int64), limit


def pack(costs: Costs, batches: int, limit: int) -> list[list[int]] | None:
    """Return batches of any size, none empty, the most expensive first; None if they do not fit this way.

    Args:
        costs: from `fitted`; at least one for each batch.
        batches: how many.
        limit: the most that a batch may cost, of each kind.

    Example:
        >>> pack(np.array([[5], [4], [3]]), 2, 7)
        [[1, 2], [0]]
    """
    heights = costs.max(1)
    order = np.argsort(-heights, kind="stable")
    # The number of samples comes second, so that every batch gets one even if they all cost 0.
    heap = [(0, 0, number) for number in range(batches)]
    packed: list[list[int]] = [[] for _ in range(batches)]
    loads: list[list[int]] = [[0] * costs.shape[1] for _ in range(batches)]
    is_single = costs.shape[1] == 1
    for position, cost in zip(order.tolist(), costs[order].tolist(), strict=True):
        height, count, number = heap[0]
        if is_single:
            height += cost[0]
        else:
            load = loads[number] = [a + b for a, b in zip(loads[number], cost, strict=True)]
            height = max(load)
        if height > limit:
            return None
        packed[number].append(position)
        heapq.heapreplace(heap, (height, count + 1, number))
    return [packed[number] for _, _, number in sorted(heap, key=lambda batch: (-batch[0], batch[2]))]
