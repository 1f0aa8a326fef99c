"""Objects that save and restore their state."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from feedline import DataLoader
from feedline.abc.stateful import is_stateful


class Both:
    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        return


class Counts:
    """Its state depends on counts of its own loader."""

    def state_dict(self, num_samples: int, *, from_beginning: bool) -> dict[str, Any]:
        return {"num_samples": num_samples, "from_beginning": from_beginning}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        return


class Needs(Both):
    def load_state_dict(self, state: dict[str, int], strict: bool) -> None:  # type: ignore[override]
        return


class Allows(Both):
    def state_dict(self, prefix: str = "") -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int], *, strict: bool = True) -> None:
        return


class Attributes:
    """Has its methods as attributes, like a wrapper."""

    def __init__(self, state_dict: Any, load_state_dict: Any) -> None:
        self.state_dict = state_dict
        self.load_state_dict = load_state_dict


class OnlySaves:
    def state_dict(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("value", "stateful"),
    [
        (Both(), True),
        (Allows(), True),
        (Attributes(Both().state_dict, Both().load_state_dict), True),
        (Attributes(dict, {}.update), True),
        (Attributes({}, {}), False),
        (Counts(), False),
        (Needs(), False),
        (torch.nn.Linear(1, 1), False),
        (OnlySaves(), False),
        (iter([]), False),
        (None, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_stateful_objects_need_both_methods_with_the_right_signatures(value: Any, stateful: bool) -> None:
    assert is_stateful(value) is stateful


class CountedStream(torch.utils.data.IterableDataset[int], Counts):
    def __iter__(self) -> Iterator[int]:
        yield from range(6)


def test_a_dataset_that_only_its_own_loader_can_save_is_replayed() -> None:
    loader: DataLoader[int] = DataLoader(CountedStream(), 2)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other: DataLoader[int] = DataLoader(CountedStream(), 2)
    other.load_state_dict(state)
    assert [batch.tolist() for batch in other] == [[2, 3], [4, 5]]


class Unhashable:
    __hash__ = None  # type: ignore[assignment]

    def __call__(self, *arguments: Any) -> None:
        """Accept any arguments, like a method."""


class Bare:
    """A dataset whose methods are attributes that reference it."""

    def __init__(self) -> None:
        self.state_dict = lambda: {"of": self}
        self.load_state_dict = Unhashable()


def test_is_stateful_does_not_keep_the_dataset_alive() -> None:
    dataset = Bare()
    assert is_stateful(dataset)
    gone = weakref.ref(dataset)
    del dataset
    gc.collect()
    assert gone() is None
