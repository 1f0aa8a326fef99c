"""Whether and how a loader splits an iterable dataset over workers and ranks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset, get_worker_info

from feedline import DataLoader, Loader, samplers
from feedline.abc.source import ShardedSource
from feedline.errors import DataWarning
from feedline.types import EngineName


class Curious(IterableDataset[int]):
    """Asks which worker it is in."""

    def __iter__(self) -> Iterator[int]:
        get_worker_info()
        return iter(range(8))


@pytest.mark.parametrize("engine_name", ["thread", "process"])
def test_a_dataset_that_calls_get_worker_info_warns_with_shard(engine_name: EngineName) -> None:
    loader = DataLoader(Curious(), 2, num_workers=2, engine=engine_name, shard=True)
    with pytest.warns(DataWarning, match="get_worker_info") as warned:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    own = [warning for warning in warned if warning.category is DataWarning]  # Python warns about forks too
    assert [warning.filename for warning in own] == [__file__]


class Parts(ShardedSource, IterableDataset[int]):
    """Yields the part that `set_worker` selected."""

    def __init__(self) -> None:
        self.worker = (0, 1)

    def set_worker(self, number: int, count: int) -> None:
        self.worker = number, count

    def __iter__(self) -> Iterator[int]:
        number, count = self.worker
        return iter(range(number, 11, count))


@pytest.mark.parametrize(("engine", "workers"), [("inline", 0), ("thread", 3), ("process", 2)])
def test_set_worker_is_called_on_a_source_that_splits_itself(engine: EngineName, workers: int) -> None:
    source = Parts()
    loaders: list[Any] = [
        Loader(source, 2, workers=workers, engine=engine),
        DataLoader(source, 2, num_workers=workers, engine=engine),
    ]
    for loader in loaders:
        found = [[int(number) for number in batch] for batch in loader]
        assert sorted(number for batch in found for number in batch) == list(range(11))
        assert all(len({number % max(1, workers) for number in batch}) == 1 for batch in found)
    assert source.worker == (0, 1)  # called on copies, not on this one


# -- samplers that are split twice


class Hidden:
    """A dataset that wraps a sampler, as frameworks make them for torch's DistributedSampler."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return len(self._sampler)


class Shard:
    """The batches of one of several processes, as in Accelerate."""

    def __init__(self, batch_sampler: Any) -> None:
        self.batch_sampler = batch_sampler
        self.num_processes = 2

    def __iter__(self) -> Iterator[list[int]]:
        return islice(self.batch_sampler, 0, None, self.num_processes)


EIGHT: Any = range(8)


def half() -> Any:
    return samplers.DistributedSampler(range(8), 2, 0)


def torch_part(of: Any, ranks: int = 2) -> Any:
    return torch.utils.data.DistributedSampler(of, ranks, 0)


TWICE: dict[str, dict[str, Any]] = {
    "torch's around ours": {"sampler": torch_part(half())},
    "torch's around a wrapper": {"sampler": torch_part(Hidden(half()))},
    "torch's batches": {"batch_sampler": Shard(torch.utils.data.BatchSampler(half(), 2, False))},
}

ONCE: dict[str, dict[str, Any]] = {
    "ours": {"sampler": half()},
    "torch's": {"sampler": torch_part(range(8))},
    "shared batches": {"batch_sampler": samplers.distribute(samplers.LengthBucketBatchSampler(range(1, 9), 2), 1, 2)},
    "batches of processes": {"batch_sampler": Shard(samplers.BatchSampler(range(8), 2, False))},
}


@pytest.mark.parametrize("given", TWICE.values(), ids=TWICE)
def test_samplers_that_split_twice_warn(given: dict[str, Any]) -> None:
    with pytest.warns(DataWarning, match=r"one sample in 4.*use_distributed_sampler=False") as warned:
        DataLoader(EIGHT, **given)
    assert [warning.filename for warning in warned] == [__file__]


@pytest.mark.parametrize("given", ONCE.values(), ids=ONCE)
def test_samplers_that_split_once_do_not_warn(given: dict[str, Any]) -> None:
    DataLoader(EIGHT, **given)


# -- streams that the loader splits ---


class Sized(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(21))

    def __len__(self) -> int:
        return 21


@pytest.mark.parametrize("kind", [Loader, DataLoader])
@pytest.mark.parametrize("tail", ["pad", "drop", "exact"])
def test_the_length_of_a_shared_stream_is_this_ranks(kind: Any, tail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        loader = kind(Sized(), 2, shard=tail)
        assert len(loader) == len(list(loader)) < 11


class Spoilt(IterableDataset[int]):
    """Sample 5 fails; those after it do not."""

    def __iter__(self) -> Iterator[int]:
        return map(self.make, range(12))

    def make(self, number: int) -> int:
        if number == 5:
            raise ValueError("five")
        return number


def survivors(batches: Iterator[Any]) -> tuple[list[Any], int]:
    """Return the delivered batches and the number of errors."""
    came, failures = [], 0
    while True:
        try:
            came.append(next(batches).tolist())
        except StopIteration:
            return came, failures
        except ValueError:
            failures += 1


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_sample_of_a_split_stream_costs_only_its_own_batch(workers: int) -> None:
    loader = DataLoader(Spoilt(), 2, shard=True, num_workers=workers, engine="thread" if workers else "auto")
    assert survivors(iter(loader)) == ([[0, 1], [2, 3], [6, 7], [8, 9], [10, 11]], 1)


@pytest.mark.parametrize("shard", [True, False])
def test_a_resumed_stream_passes_over_a_sample_that_raised(shard: bool) -> None:
    loader = DataLoader(Spoilt(), 2, shard=shard)
    batches = iter(loader)
    assert [batch.tolist() for batch in islice(batches, 2)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="five"):
        next(batches)
    state = loader.state_dict()
    other = DataLoader(Spoilt(), 2, shard=shard)
    other.load_state_dict(state)
    assert survivors(iter(other)) == ([[6, 7], [8, 9], [10, 11]], 0)
