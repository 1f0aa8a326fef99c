"""Finding what objects hold without running their code or making attribute access slower."""

from __future__ import annotations

import gc
from collections import OrderedDict
from contextlib import closing
from queue import SimpleQueue
from typing import Any

import pytest
import torch

import feedline
from feedline.system.attributes import attributes_of, held_by


class Plain:
    def __init__(self) -> None:
        self.a, self.b = [1], {"c": 2}


class Slotted:
    __slots__ = ("a", "unfilled")

    def __init__(self) -> None:
        self.a = [1]


class SlottedWithDict(Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.b = {"c": 2}


class OwnDict:
    """Has a `__dict__` of another type, like EasyDict."""

    def __init__(self) -> None:
        self.__dict__ = OrderedDict(a=[1], b={"c": 2})


class BaseInC(SimpleQueue):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.a, self.b = [1], {"c": 2}


class Asking(Plain):
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    @property
    def c(self) -> Any:
        raise AssertionError("its code was run")


@pytest.mark.parametrize(
    "kind", [Plain, Slotted, SlottedWithDict, OwnDict, BaseInC, Asking], ids=lambda kind: kind.__name__
)
def test_held_objects_are_those_in_the_attributes(kind: type) -> None:
    value = kind()
    held = {id(part) for part in held_by(value)}
    assert held >= {id(part) for _, part in attributes_of(value)}


def _keeps_a_dictionary(value: Any) -> bool:
    """Return whether Python keeps the attributes of an object in a dictionary."""
    return any(type(part) is dict for part in gc.get_referents(value))


class Watched(torch.utils.data.Dataset[int]):
    """Samples say whether the `__dict__` of this dataset has been accessed in its process."""

    def __init__(self) -> None:
        self.count = 64
        self.transform: Any = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        return int(_keeps_a_dictionary(self))


needs_arrays = pytest.mark.skipif(_keeps_a_dictionary(Watched()), reason="this Python keeps attributes in dictionaries")


@needs_arrays
@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"on_error": "skip"}, {"num_workers": "auto"}], ids=str)
def test_loaders_do_not_slow_down_attribute_access(options: dict[str, Any]) -> None:
    dataset = Watched()
    with closing(feedline.DataLoader(dataset, batch_size=8, **{"num_workers": 2, **options})) as loader:
        accessed = [int(batch.sum()) for _ in range(2) for batch in loader]
    assert accessed == [0] * 16
    assert not _keeps_a_dictionary(dataset)
