"""Virtual epochs end with the loader, outlive exceptions, and are shared out among ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from feedline import DataLoader, Loader
from tests.order.facts import flat, values

KINDS = [Loader, DataLoader]


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    def become(rank: int, world_size: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world_size))

    return become


@pytest.mark.parametrize("kind", KINDS)
def test_virtual_epochs_are_over_when_the_loader_is_closed(kind: Any) -> None:
    options = {"persistent" if kind is Loader else "persistent_workers": True}
    loader = kind(list(range(6)), 2, engine="thread", **{"workers" if kind is Loader else "num_workers": 1}, **options)
    epochs = loader.virtual_epochs(2)
    assert values(next(epochs)) == [[0, 1], [2, 3]]
    loader.close()
    assert list(next(epochs)) == []
    with pytest.raises(StopIteration):
        next(epochs)


@pytest.mark.parametrize("kind", KINDS)
def test_virtual_epochs_of_a_foreign_order_go_on_after_an_exception(kind: Any) -> None:
    class Bad(Dataset[int]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise ValueError("three")
            return index

    epochs = kind(Bad(), 2, sampler=list(range(6))).virtual_epochs(2)
    came: list[Any] = []
    failures = 0
    for _ in range(6):
        epoch = next(epochs)
        try:
            came.extend(batch.tolist() for batch in epoch)
        except ValueError:
            failures += 1
    assert failures > 1
    assert came[:4] == [[0, 1], [4, 5], [0, 1], [4, 5]], "no batch but the bad one is left out, and none comes twice"


@pytest.mark.parametrize("kind", KINDS)
def test_virtual_epochs_of_two_ranks_without_a_seed_are_disjoint(kind: Any, ranks: Callable[[int, int], None]) -> None:
    came = []
    for rank in range(2):
        ranks(rank, 2)
        torch.manual_seed(rank)
        loader = kind(list(range(40)), 2, shuffle=True)
        came.append(flat(next(loader.virtual_epochs(10))))
    assert sorted(came[0] + came[1]) == list(range(40))
