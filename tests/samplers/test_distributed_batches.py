"""Shares of batches."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.abc import BatchSampler
from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.samplers.distributed_batches import DistributedBatches, split
from feedline.types import TAILS, Key, Share

lengths = st.lists(st.integers(1, 9), max_size=30)


class Ragged(BatchSampler):
    """Batches of given lengths, whose indices depend on the epoch."""

    def __init__(self, given_lengths: list[int]) -> None:
        self.lengths = given_lengths

    def size(self) -> int:
        return len(self.lengths)

    def batch(self, number: int, key: Key) -> IndexArray:
        start = 1000 * key.epoch + sum(self.lengths[:number])
        return np.arange(start, start + self.lengths[number])


def shares(given_lengths: list[int], count: int, tail: str) -> list[DistributedBatches]:
    return [DistributedBatches(Ragged(given_lengths), Share(rank, count, tail)) for rank in range(count)]


def as_lists(batches: BatchSampler, count: int, key: Key) -> list[list[int]]:
    return [batches.batch(number, key).tolist() for number in range(count)]


@given(lengths, st.integers(1, 8), st.sampled_from(["pad", "drop"]))
def test_ranks_take_turns(given_lengths: list[int], count: int, tail: str) -> None:
    parts = [list(part) for part in shares(given_lengths, count, tail)]
    steps = len(given_lengths) // count if tail == "drop" else -(-len(given_lengths) // count)
    assert {len(part) for part in parts} == {steps}
    whole = as_lists(Ragged(given_lengths), len(given_lengths), Key(0, 0))
    together = [batch for step in zip(*parts, strict=True) for batch in step]
    assert together == [whole[number % len(whole)] for number in range(steps * count)]


@given(lengths, st.integers(1, 8))
def test_exact_shares_every_index_once_in_equal_steps(given_lengths: list[int], count: int) -> None:
    samplers = shares(given_lengths, count, "exact")
    rest = len(given_lengths) % count
    if 0 < sum(given_lengths[len(given_lengths) - rest :]) < count:
        with pytest.raises(BadOption, match=f"{count} ranks"):
            list(samplers[0])
        return
    parts = [list(part) for part in samplers]
    assert len({len(part) for part in parts}) == 1
    assert all(batch for part in parts for batch in part)
    drawn = Counter(index for part in parts for batch in part for index in batch)
    assert drawn == Counter(range(sum(given_lengths)))
    whole = as_lists(Ragged(given_lengths), len(given_lengths), Key(0, 0))
    assert all(any(set(batch) <= set(one) for one in whole) for part in parts for batch in part)


@given(lengths, st.integers(1, 8), st.sampled_from(TAILS), st.data())
def test_resumed_goes_on_where_it_was_left(
    given_lengths: list[int], count: int, tail: str, data: st.DataObject
) -> None:
    for part in shares([length + 8 for length in given_lengths], count, tail):
        steps = part.size()
        assert steps is not None
        done = data.draw(st.integers(0, len(given_lengths) // count))
        rest = part.resumed(done * count)
        left = steps - done
        assert rest.size() == left
        assert as_lists(rest, left, Key(1, 2)) == as_lists(part, steps, Key(1, 2))[done:]


@given(lengths, st.integers(1, 8), st.integers(1, 8), st.data())
def test_another_number_of_ranks_takes_over(
    given_lengths: list[int], before: int, after: int, data: st.DataObject
) -> None:
    done = data.draw(st.integers(0, len(given_lengths) // before))
    old, new = (shares([length + 8 for length in given_lengths], count, "exact") for count in (before, after))
    key = Key(0, 0)
    drawn = [batch for part in old for batch in as_lists(part, done, key)]
    for part in new:
        rest = part.resumed(done * before)
        drawn += as_lists(rest, rest.size() or 0, key)
    indices = Counter(index for batch in drawn for index in batch)
    assert indices == Counter(range(sum(length + 8 for length in given_lengths)))


def test_nothing_is_left_at_the_end() -> None:
    part = DistributedBatches(Ragged([1, 2, 3]), Share(0, 2))
    assert part.resumed(3).size() == 0
    assert part.resumed(4).size() == 0


def test_resumed_keeps_seed_and_epoch() -> None:
    part = DistributedBatches(Ragged([1, 2, 3]), Share(0, 2))
    part.set_epoch(6)
    assert part.resumed(2).begin() == Key(0, 6)


def test_epochs_are_counted() -> None:
    part = DistributedBatches(Ragged([2, 2]), Share(1, 2))
    assert list(part) == [[2, 3]]
    assert list(part) == [[1002, 1003]]


def test_share_and_whole_are_told() -> None:
    whole = Ragged([1, 2, 3])
    part = DistributedBatches(whole, Share(1, 2, "drop"))
    assert part.whole() is whole
    assert part.share == Share(1, 2, "drop")
    assert part.describe() == whole.describe()
    assert "rank=1, world_size=2, tail='drop'" in repr(part)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 16))
def test_pieces(given_lengths: list[int], count: int) -> None:
    starts = np.cumsum([0, *given_lengths])
    batches = [np.arange(start, stop) for start, stop in pairwise(starts)]
    if not len(batches) <= count <= starts[-1]:
        return
    pieces = split(batches, count)
    assert len(pieces) == count
    assert min(map(len, pieces)) > 0
    assert np.array_equal(np.concatenate(pieces), np.arange(starts[-1]))
    # Halving the largest again and again: nothing that was cut is less than half of anything left.
    halved = [len(piece) for piece in pieces if len(piece) not in given_lengths]
    assert not halved or max(map(len, pieces)) <= 2 * min(halved) + 1
