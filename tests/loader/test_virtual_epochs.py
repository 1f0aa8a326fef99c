"""Endless data, cut into epochs of a fixed number of batches."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from feedline import DataLoader, Loader
from feedline.delivery.state import Snapshot
from feedline.errors import BadOption


def make(count: int = 10, size: int = 4, **options: Any) -> Loader:
    return Loader(list(range(count)), size, shuffle=True, seed=2, **options)


class Watching:
    """Samples say whether the previous batch has been freed."""

    def __init__(self) -> None:
        self.last: Any = lambda: None

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> bool:
        return self.last() is None


class WatchingStream:
    def __init__(self) -> None:
        self.last: Any = lambda: None

    def __iter__(self) -> Iterator[bool]:
        while True:
            yield self.last() is None


@pytest.mark.parametrize("kind", [Watching, WatchingStream], ids=["samples", "stream"])
def test_a_batch_is_freed_before_the_next_is_made(kind: Any) -> None:
    """Its memory is needed for the next one."""
    dataset = kind()
    batches = iter(next(Loader(dataset, 1, shard=True).virtual_epochs(6)))
    for _ in range(6):
        batch = next(batches)
        assert batch.tolist() == [True]
        dataset.last = weakref.ref(batch)
        del batch


# -- state ---


def test_a_distant_position_is_reached_at_once() -> None:
    loader = make()
    near = Snapshot.from_dict(chain_state(loader))
    distant = replace(near, order={**near.order, "consumed": 10**15}, virtual=(10**12, 1))
    loader.load_state_dict(distant.as_dict())
    epoch = next(loader.virtual_epochs(3))
    assert epoch.number == 10**12
    assert len(list(epoch)) == 2


def chain_state(loader: Loader) -> dict[str, Any]:
    list(islice(next(loader.virtual_epochs(3)), 1))
    return loader.state_dict()


# -- the rest ---


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_rejects_epochs_without_batches(steps: Any) -> None:
    with pytest.raises(BadOption, match="steps_per_epoch"):
        make().virtual_epochs(steps)


# -- both loaders ---


@pytest.mark.parametrize("kind", [Loader, DataLoader])
def test_virtual_epochs_of_a_foreign_order_continue_after_an_exception(kind: Any) -> None:
    class Bad:
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> int:
            if index == 3:
                raise ValueError("three")
            return index

    epochs = kind(Bad(), 2, sampler=list(range(6))).virtual_epochs(2)
    seen: list[Any] = []
    failures = 0
    for _ in range(6):
        epoch = next(epochs)
        try:
            seen.extend(batch.tolist() for batch in epoch)
        except ValueError:
            failures += 1
    assert failures > 1
    assert seen[:4] == [[0, 1], [4, 5], [0, 1], [4, 5]], "only the bad batch is missing, and none comes twice"
