"""Shares of ranks: what each tail guarantees, and parity with torch's DistributedSampler."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline import abc
from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.samplers import (
    BatchSampler,
    DistributedSampler,
    LengthBucketBatchSampler,
    RandomSampler,
    SequentialSampler,
    distribute,
)
from feedline.samplers.distributed import DistributedBatches
from feedline.system.ranks import TAILS, Share, Tail
from feedline.types import Key

MAKERS: dict[str, Callable[..., Any]] = {
    "sampler": lambda **ranks: DistributedSampler(range(8), shuffle=False),
    "share": lambda **ranks: distribute(SequentialSampler(range(8)), **ranks),
    "foreign": lambda **ranks: distribute(list(range(8)), **ranks),
    "cut batches": lambda **ranks: distribute(BatchSampler(SequentialSampler(range(8)), 1, False), **ranks),
    "batches": lambda **ranks: distribute(LengthBucketBatchSampler(range(1, 9), 1, shuffle=False), **ranks),
}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def flat(sampler: Any) -> list[int]:
    return [index for item in sampler for index in (item if isinstance(item, list) else [item])]


@pytest.mark.parametrize("name", MAKERS)
def test_ranks_are_read_from_the_environment_on_first_use(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = MAKERS[name]()
    assert flat(sampler) == list(range(8))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for one in (sampler, pickle.loads(pickle.dumps(sampler))):
        assert flat(one) == [1, 3, 5, 7]
        assert len(one) == 4
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert flat(sampler) == [1, 3, 5, 7], "once known, they stay"


torch_distributed = pytest.importorskip("torch.utils.data.distributed")

ranks = st.integers(1, 8)


@given(st.integers(0, 50), ranks, st.sampled_from(TAILS), st.booleans())
def test_ranks_together_get_what_the_tail_guarantees(samples: int, count: int, tail: Tail, shuffle: bool) -> None:
    samplers = [DistributedSampler(range(samples), count, rank, shuffle, 3, tail=tail) for rank in range(count)]
    parts = [list(sampler) for sampler in samplers]
    assert [len(part) for part in parts] == [len(sampler) for sampler in samplers]
    drawn = Counter(index for part in parts for index in part)
    if tail == "exact":
        assert drawn == Counter(range(samples))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
        return
    assert len({len(part) for part in parts}) == 1
    if tail == "drop":
        assert len(parts[0]) == samples // count
        assert set(drawn.values()) <= {1}
    else:
        assert len(parts[0]) == math.ceil(samples / count)
        assert set(drawn) == set(range(samples))
        if samples:
            assert max(drawn.values()) - min(drawn.values()) <= 1


@given(st.integers(0, 60), ranks, st.booleans(), st.booleans(), st.data())
def test_counts_equal_torchs(samples: int, count: int, shuffle: bool, drop_last: bool, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, count - 1))
    ours = DistributedSampler(range(samples), count, rank, shuffle, 7, drop_last)
    theirs = torch_distributed.DistributedSampler(range(samples), count, rank, shuffle, 7, drop_last)
    names = ("num_samples", "total_size", "num_replicas", "rank", "epoch", "drop_last", "shuffle", "seed", "dataset")
    assert [getattr(ours, name) for name in names] == [getattr(theirs, name) for name in names]
    assert len(ours) == len(theirs)
    indices = list(ours)
    assert len(indices) == len(theirs)
    if not shuffle:
        assert indices == list(theirs)


@pytest.mark.parametrize("tail", TAILS)
def test_ranks_share_one_order_step_by_step(tail: Tail) -> None:
    parts = [list(DistributedSampler(range(100), 4, rank, seed=5, tail=tail)) for rank in range(4)]
    together = [index for step in zip(*parts, strict=True) for index in step]
    assert together == list(RandomSampler(range(100), seed=5))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tail": "pad", "drop_last": True}, BadOption),
        ({"tail": "wrap"}, BadOption),
        ({"seed": None}, BadOption),
        ({"seed": None, "shuffle": False}, BadOption),
    ],
)
def test_rejects_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        DistributedSampler(range(5), 2, 0, **options)


lengths = st.lists(st.integers(1, 9), max_size=30)


class Ragged(abc.BatchSampler):
    """Batches of given lengths; their indices depend on the epoch."""

    def __init__(self, given_lengths: list[int]) -> None:
        self.lengths = given_lengths

    def size(self) -> int:
        return len(self.lengths)

    def batch(self, number: int, key: Key) -> IndexArray:
        start = 1000 * key.epoch + sum(self.lengths[:number])
        return np.arange(start, start + self.lengths[number])


def shares(given_lengths: list[int], count: int, tail: str) -> list[DistributedBatches]:
    return [DistributedBatches(Ragged(given_lengths), Share(rank, count, tail)) for rank in range(count)]


def as_lists(batches: abc.BatchSampler, count: int, key: Key) -> list[list[int]]:
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
def test_exact_delivers_every_index_once_in_equal_steps(given_lengths: list[int], count: int) -> None:
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


torch = pytest.importorskip("torch")
torch_data = torch.utils.data


def test_cut_batches_are_cut_from_the_share() -> None:
    shared = distribute(BatchSampler(SequentialSampler(range(10)), 3, False), 1, 2)
    assert list(shared) == [[1, 3, 5], [7, 9]]
    assert isinstance(shared, abc.BatchSampler)
    parts = shared.cut_from()
    assert parts is not None
    assert parts[0].share == Share(1, 2)
    assert parts[1:] == (3, False)


@pytest.mark.parametrize(
    "shared",
    [
        DistributedSampler(range(5), 2, 0),
        BatchSampler(DistributedSampler(range(5), 2, 0), 2, False),
        torch_data.DistributedSampler(range(5), 2, 0),
        torch_data.BatchSampler(torch_data.DistributedSampler(range(5), 2, 0), 2, False),
        BatchSampler(torch_data.DistributedSampler(range(5), 2, 0), 2, False),
        distribute([1, 2, 3], 0, 2),
        distribute([[1], [2], [3]], 0, 2),
    ],
    ids=lambda shared: type(shared).__name__,
)
def test_rejects_sharing_a_share(shared: Any) -> None:
    with pytest.raises(BadOption, match=r"already one rank.s share"):
        distribute(shared, 0, 2)
