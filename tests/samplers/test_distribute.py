"""Any sampler, shared among ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from feedline import abc
from feedline.errors import BadOption
from feedline.samplers import (
    BatchSampler,
    DistributedSampler,
    InfiniteSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
    distribute,
)
from feedline.samplers.distributed_batches import DistributedBatches
from feedline.types import Share, Tail

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
def test_indices_of_all_ranks(make: Callable[[], Any], tail: Tail) -> None:
    ranks = [distribute(make(), rank, 4, tail=tail) for rank in range(4)]
    for epoch in range(2):
        torch.manual_seed(epoch)  # ranks draw other numbers in between, and nothing may come of it
        parts = []
        for share in ranks:
            torch.rand(3)
            parts.append(indices_of(share))
        drawn = Counter(index for part in parts for index in part)
        assert len(drawn) == (100 if tail == "drop" else 103)
        assert sum(drawn.values()) == {"pad": 104, "drop": 100, "exact": 103}[tail]


@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
@pytest.mark.parametrize("make", BATCHES.values(), ids=BATCHES)
def test_batches_of_all_ranks(make: Callable[[], Any], tail: Tail) -> None:
    parts = [batches_of(distribute(make(), rank, 4, tail=tail)) for rank in range(4)]
    assert len({len(part) for part in parts}) == 1
    drawn = Counter(index for part in parts for batch in part for index in batch)
    if tail == "exact":
        assert drawn == Counter(range(103))
    elif tail == "pad":
        assert set(drawn) == set(range(103))
    else:
        assert set(drawn.values()) == {1}


def test_epochs_differ_without_anybody_doing_anything() -> None:
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


def test_endless_samplers() -> None:
    parts = [indices_of(distribute(InfiniteSampler(range(10)), rank, 2), 5) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(10))


def test_weights_are_kept() -> None:
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
def test_a_share_of_a_share_is_refused(shared: Any) -> None:
    with pytest.raises(BadOption, match="share already"):
        distribute(shared, 0, 2)


def test_what_has_no_length_is_refused() -> None:
    with pytest.raises(BadOption, match="no length"):
        distribute(iter(range(5)), 0, 2)


@pytest.mark.parametrize(("rank", "world_size", "tail"), [(2, 2, "pad"), (0, 0, "pad"), (0, 2, "wrap")])
def test_shares_that_make_no_sense(rank: int, world_size: int, tail: Tail) -> None:
    with pytest.raises(BadOption):
        distribute([1, 2, 3], rank, world_size, tail=tail)


def test_rank_comes_from_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(distribute(range(9))) == [1, 4, 7]


def test_torch_s_loader_takes_them() -> None:
    loader = torch_data.DataLoader(range(10), batch_sampler=distribute([[0, 1], [2], [3, 4]], 0, 2))
    assert [batch.tolist() for batch in loader] == [[0, 1], [3, 4]]
