"""Shares of ranks: what each tail guarantees, and parity with torch's DistributedSampler."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Callable
from itertools import islice, pairwise
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
    InfiniteSampler,
    LengthBucketBatchSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    distribute,
)
from feedline.samplers.distributed import Distributed, DistributedBatches, pieces_of
from feedline.types import TAILS, Key, Share, Tail

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


@pytest.mark.parametrize("name", ["share", "foreign", "cut batches", "batches"])
def test_explicit_ranks_have_precedence_over_the_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = MAKERS[name](rank=0, world_size=1)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert flat(sampler) == list(range(8))


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


def test_every_iteration_counts_as_an_epoch() -> None:
    sampler, twin = (DistributedSampler(range(50), 2, 0) for _ in range(2))
    epochs = [list(sampler), list(sampler)]
    assert epochs[0] != epochs[1]
    twin.set_epoch(1)
    assert twin.epoch == 1
    assert list(twin) == epochs[1]


def test_share_and_whole_are_returned() -> None:
    sampler = DistributedSampler(range(5), 2, 1, tail="exact")
    assert sampler.share == Share(1, 2, "exact")
    assert sampler.whole().size() == 5
    assert sampler.describe() == sampler.whole().describe() == RandomSampler(range(5)).describe()
    assert sampler.total_size == 5


def test_the_seed_is_the_samplers_or_zero() -> None:
    assert Distributed(RandomSampler(range(5), seed=3), Share()).seed == 3
    assert Distributed(RandomSampler(range(5)), Share()).seed == 0


def test_ranks_in_one_process_do_not_disturb_each_other() -> None:
    sampler = RandomSampler(range(20), seed=1)
    parts = [Distributed(sampler, Share(rank, 2)) for rank in range(2)]
    for epoch in range(3):
        drawn = [index for part in parts for index in part]
        assert sorted(drawn) == list(range(20))
        assert [part.epoch for part in parts] == [epoch + 1] * 2


def test_an_epoch_set_before_sharing_is_kept() -> None:
    sampler = RandomSampler(range(20), seed=1)
    sampler.set_epoch(4)
    assert Distributed(sampler, Share()).begin() == Key(1, 4)


@pytest.mark.parametrize(("count", "rank"), [(2, 2), (2, -1), (1, 5)])
def test_rejects_ranks_out_of_range(count: int, rank: int) -> None:
    with pytest.raises(ValueError, match="rank"):
        torch_distributed.DistributedSampler(range(5), count, rank)
    with pytest.raises(ValueError, match=f"rank={rank}"):
        DistributedSampler(range(5), count, rank)


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


def test_there_is_one_rank_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert list(DistributedSampler(range(5), shuffle=False)) == list(range(5))


def test_repr() -> None:
    assert repr(Distributed(SequentialSampler(range(3)), Share(1, 2))) == (
        "Distributed(SequentialSampler(3 samples), rank=1, world_size=2, tail='pad')"
    )
    assert "num_replicas=2, rank=1" in repr(DistributedSampler(range(3), 2, 1))


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


@given(lengths, st.integers(1, 8), st.sampled_from(TAILS), st.data())
def test_resumed_continues_where_it_stopped(
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
def test_another_number_of_ranks_can_resume(
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


def test_each_iteration_of_batches_is_another_epoch() -> None:
    part = DistributedBatches(Ragged([2, 2]), Share(1, 2))
    assert list(part) == [[2, 3]]
    assert list(part) == [[1002, 1003]]


def test_share_and_whole_of_batches_are_returned() -> None:
    whole = Ragged([1, 2, 3])
    part = DistributedBatches(whole, Share(1, 2, "drop"))
    assert part.whole() is whole
    assert part.share == Share(1, 2, "drop")
    assert part.describe() == whole.describe()
    assert "rank=1, world_size=2, tail='drop'" in repr(part)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 16))
def test_batches_are_cut_into_similar_pieces(given_lengths: list[int], count: int) -> None:
    starts = np.cumsum([0, *given_lengths])
    batches = [np.arange(start, stop) for start, stop in pairwise(starts)]
    if not len(batches) <= count <= starts[-1]:
        return
    pieces = pieces_of(batches, count)
    assert len(pieces) == count
    assert min(map(len, pieces)) > 0
    assert np.array_equal(np.concatenate(pieces), np.arange(starts[-1]))
    # The largest is halved repeatedly, so no piece is smaller than half of any other.
    halved = [len(piece) for piece in pieces if len(piece) not in given_lengths]
    assert not halved or max(map(len, pieces)) <= 2 * min(halved) + 1


torch = pytest.importorskip("torch")
torch_data = torch.utils.data

INDICES: dict[str, Callable[[], Any]] = {
    "random": lambda: RandomSampler(range(103)),
    "list": lambda: list(range(103)),
    "torch random": lambda: torch_data.RandomSampler(range(103)),
    "torch random, own generators": lambda: torch_data.RandomSampler(range(103), generator=torch.Generator()),
    "torch subset": lambda: torch_data.SubsetRandomSampler(range(103)),
}
BATCHES: dict[str, Callable[[], Any]] = {
    "cut": lambda: BatchSampler(RandomSampler(range(103)), 4, False),
    "over torch's": lambda: BatchSampler(torch_data.RandomSampler(range(103)), 4, False),
    "torch": lambda: torch_data.BatchSampler(torch_data.RandomSampler(range(103)), 4, False),
    "list": lambda: [list(range(start, min(start + 4, 103))) for start in range(0, 103, 4)],
}


def indices_of(shared: abc.Sampler | abc.BatchSampler, count: int | None = None) -> list[int]:
    assert isinstance(shared, abc.Sampler)
    return list(islice(shared, count))


def batches_of(shared: abc.Sampler | abc.BatchSampler) -> list[list[int]]:
    assert isinstance(shared, abc.BatchSampler)
    return list(shared)


@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
@pytest.mark.parametrize("make", INDICES.values(), ids=INDICES)
def test_indices_of_all_ranks_are_consistent(make: Callable[[], Any], tail: Tail) -> None:
    ranks = [distribute(make(), rank, 4, tail=tail) for rank in range(4)]
    for epoch in range(2):
        torch.manual_seed(epoch)  # ranks draw different numbers in between, which must not matter
        parts = []
        for share in ranks:
            torch.rand(3)
            parts.append(indices_of(share))
        drawn = Counter(index for part in parts for index in part)
        assert len(drawn) == (100 if tail == "drop" else 103)
        assert sum(drawn.values()) == {"pad": 104, "drop": 100, "exact": 103}[tail]


@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_batches_of_all_ranks_are_consistent(make: Callable[[], Any], tail: Tail) -> None:
    parts = [batches_of(distribute(make(), rank, 4, tail=tail)) for rank in range(4)]
    assert len({len(part) for part in parts}) == 1
    drawn = Counter(index for part in parts for batch in part for index in batch)
    if tail == "exact":
        assert drawn == Counter(range(103))
    elif tail == "pad":
        assert set(drawn) == set(range(103))
    else:
        assert set(drawn.values()) == {1}


def test_epochs_differ_without_set_epoch() -> None:
    for make in (*INDICES.values(), *BATCHES.values()):
        shared = distribute(make(), 0, 2)
        epochs = [list(shared), list(shared)]
        if not isinstance(make(), list):
            assert epochs[0] != epochs[1]
        shared.set_epoch(1)
        assert list(shared) == epochs[1]


def test_cut_batches_are_cut_from_the_share() -> None:
    shared = distribute(BatchSampler(SequentialSampler(range(10)), 3, False), 1, 2)
    assert list(shared) == [[1, 3, 5], [7, 9]]
    assert isinstance(shared, abc.BatchSampler)
    parts = shared.cut_from()
    assert parts is not None
    assert parts[0].share == Share(1, 2)
    assert parts[1:] == (3, False)


def test_batches_that_are_not_cut_are_shared_whole() -> None:
    shared = distribute([[0, 1], [2], [3, 4]], 1, 2)
    assert isinstance(shared, DistributedBatches)
    assert list(shared) == [[2], [0, 1]]


def test_endless_samplers_can_be_shared() -> None:
    parts = [indices_of(distribute(InfiniteSampler(range(10)), rank, 2), 5) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(10))


def test_weighted_samplers_can_be_shared() -> None:
    shared = distribute(WeightedRandomSampler([0, 0, 1], 10), 1, 2)
    assert list(shared) == [2] * 5


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


def test_rejects_samplers_without_a_length() -> None:
    with pytest.raises(BadOption, match="no length"):
        distribute(iter(range(5)), 0, 2)


@pytest.mark.parametrize(("rank", "world_size", "tail"), [(2, 2, "pad"), (0, 0, "pad"), (0, 2, "wrap")])
def test_rejects_meaningless_shares(rank: int, world_size: int, tail: Tail) -> None:
    with pytest.raises(BadOption):
        distribute([1, 2, 3], rank, world_size, tail=tail)


def test_the_rank_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(distribute(range(9))) == [1, 4, 7]


def test_torchs_loader_accepts_shares() -> None:
    loader = torch_data.DataLoader(range(10), batch_sampler=distribute([[0, 1], [2], [3, 4]], 0, 2))
    assert [batch.tolist() for batch in loader] == [[0, 1], [3, 4]]
