"""Loaders rebuilt with other parts, as frameworks do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, IterableDataset, WeightedRandomSampler

from feedline import DataLoader, samplers
from feedline.loader.rebuilding import TorchRebuilding

REBUILDING = TorchRebuilding(DataLoader)
SIZE = 12


class Numbers(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(SIZE))


class Mine(DataLoader[Any]):
    """A subclass with its own constructor."""

    def __init__(self, size: int) -> None:
        super().__init__(range(size), 4, on_error="skip", memory_budget="1GB")
        self.size = size


def samples(loader: Any) -> list[int]:
    return [index for batch in loader for index in batch.tolist()]


def shares(make: Any, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return the samples that each of two ranks gets."""
    seen = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        seen.append(samples(REBUILDING.own_share(make())))
    return seen


def test_parts_come_from_the_other_loader_and_options_are_kept() -> None:
    loader = Mine(SIZE)
    other: Any = torch.utils.data.DataLoader(
        range(3),  # type: ignore[arg-type]
        batch_sampler=BatchSampler([2, 1, 0], 2, False),
        num_workers=1,
    )
    twin = REBUILDING.with_torch_parts(loader, other)
    assert samples(twin) == [2, 1, 0]
    assert (type(twin), twin.on_error, twin.memory_budget, twin.num_workers, twin.size) == (
        Mine,
        "skip",
        "1GB",
        1,
        SIZE,
    )
    assert twin.stats()["engine"] == "process"
    assert samples(loader) == list(range(SIZE))


def test_persistent_workers_are_not_shared() -> None:
    loader = DataLoader(range(SIZE), 4, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    next(batches)
    twin = REBUILDING.with_torch_parts(loader, loader)
    assert samples(twin) == list(range(SIZE))
    assert [batch.tolist() for batch in batches] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    twin.close()
    loader.close()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": True},
        {"shuffle": True, "seed": 1},
        {"sampler": samplers.WeightedRandomSampler([1.0] * SIZE, SIZE, replacement=False, seed=3)},
        {"sampler": WeightedRandomSampler([1.0] * SIZE, SIZE, replacement=False)},
        {"sampler": list(reversed(range(SIZE)))},
    ],
    ids=["sequential", "shuffled", "seeded", "feedline's sampler", "torch's sampler", "list"],
)
def test_ranks_share_the_samples(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = shares(lambda: DataLoader(range(SIZE), 2, **options), monkeypatch)
    assert len(first) == len(second)
    assert sorted(first + second) == list(range(SIZE))


def test_ranks_share_the_batches_of_a_batch_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [[0, 1, 2], [3], [4, 5], [6, 7, 8, 9, 10, 11]]
    first, second = shares(lambda: DataLoader(range(SIZE), batch_sampler=batches), monkeypatch)
    assert sorted(first + second) == list(range(SIZE))


def test_loaders_that_are_already_split_stay_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    torch_sampler = torch.utils.data.distributed.DistributedSampler(range(SIZE), 2, 0)  # type: ignore[arg-type, var-annotated]
    loaders: list[Any] = [
        DataLoader(range(SIZE), 2, sampler=samplers.DistributedSampler(range(SIZE))),
        DataLoader(range(SIZE), 2, sampler=torch_sampler),
        DataLoader(Numbers(), 2, shard=True),
    ]
    for loader in loaders:
        assert REBUILDING.is_sharded(loader)
        assert REBUILDING.own_share(loader) is loader
    assert not REBUILDING.is_sharded(DataLoader(Numbers(), 2))
    assert not REBUILDING.is_sharded(DataLoader(range(SIZE), 2))


@pytest.mark.parametrize("options", [{"shuffle": True, "seed": 1}, {"num_workers": 1}])
def test_an_epoch_that_ends_after_its_iterator_leaves_a_valid_state(options: dict[str, Any]) -> None:
    """Lightning saves a checkpoint after `fit`, whose last epoch was limited to a few batches."""
    loader, other = (DataLoader(range(SIZE), 4, **options) for _ in range(2))
    iterator = iter(loader)
    next(iterator)
    loader.close()
    del iterator
    REBUILDING.end_epoch(loader)
    other.load_state_dict(loader.state_dict())
    assert samples(other) == samples(loader)
