"""Shares of indices: what each tail promises, and torch's DistributedSampler."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import BadOption
from feedline.samplers import DistributedSampler, RandomSampler, SequentialSampler
from feedline.samplers.distributed import Distributed
from feedline.types import TAILS, Key, Share, Tail

torch_distributed = pytest.importorskip("torch.utils.data.distributed")

ranks = st.integers(1, 8)


@given(st.integers(0, 50), ranks, st.sampled_from(TAILS), st.booleans())
def test_ranks_together_have_what_the_tail_promises(samples: int, count: int, tail: Tail, shuffle: bool) -> None:
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
def test_counts_are_torch_s(samples: int, count: int, shuffle: bool, drop_last: bool, data: st.DataObject) -> None:
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


def test_every_iteration_is_an_epoch() -> None:
    sampler, twin = (DistributedSampler(range(50), 2, 0) for _ in range(2))
    epochs = [list(sampler), list(sampler)]
    assert epochs[0] != epochs[1]
    twin.set_epoch(1)
    assert twin.epoch == 1
    assert list(twin) == epochs[1]


def test_share_and_whole_are_told() -> None:
    sampler = DistributedSampler(range(5), 2, 1, tail="exact")
    assert sampler.share == Share(1, 2, "exact")
    assert sampler.whole().size() == 5
    assert sampler.describe() == sampler.whole().describe() == RandomSampler(range(5)).describe()
    assert sampler.total_size == 5


def test_seed_of_the_sampler_or_zero() -> None:
    assert Distributed(RandomSampler(range(5), seed=3), Share()).seed == 3
    assert Distributed(RandomSampler(range(5)), Share()).seed == 0


def test_ranks_in_one_process_do_not_disturb_each_other() -> None:
    sampler = RandomSampler(range(20), seed=1)
    parts = [Distributed(sampler, Share(rank, 2)) for rank in range(2)]
    for epoch in range(3):
        drawn = [index for part in parts for index in part]
        assert sorted(drawn) == list(range(20))
        assert [part.epoch for part in parts] == [epoch + 1] * 2


def test_epoch_set_before_sharing_counts() -> None:
    sampler = RandomSampler(range(20), seed=1)
    sampler.set_epoch(4)
    assert Distributed(sampler, Share()).begin() == Key(1, 4)


@pytest.mark.parametrize(("count", "rank"), [(2, 2), (2, -1), (1, 5)])
def test_rank_out_of_range(count: int, rank: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        torch_distributed.DistributedSampler(range(5), count, rank)
    with pytest.raises(ValueError, match=f"rank={rank}"):
        DistributedSampler(range(5), count, rank)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tail": "pad", "drop_last": True}, BadOption),
        ({"tail": "wrap"}, BadOption),
        ({"seed": None}, TypeError),
        ({"seed": None, "shuffle": False}, TypeError),
    ],
)
def test_refused_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        DistributedSampler(range(5), 2, 0, **options)


def test_alone_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert list(DistributedSampler(range(5), shuffle=False)) == list(range(5))


def test_repr() -> None:
    assert repr(Distributed(SequentialSampler(range(3)), Share(1, 2))) == (
        "Distributed(SequentialSampler(3 samples), rank=1, world_size=2, tail='pad')"
    )
    assert "num_replicas=2, rank=1" in repr(DistributedSampler(range(3), 2, 1))
