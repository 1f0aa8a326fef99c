"""What objects hold is found without running their code, and without making their attributes slower to read."""

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
from feedline.workers.handles import holds


class Plain:
    def __init__(self) -> None:
        self.a, self.b = [1], {"c": 2}


class OneDict:
    def __init__(self) -> None:
        self.only = {"c": 2}


class Empty:
    pass


class Slotted:
    __slots__ = ("a", "unfilled")

    def __init__(self) -> None:
        self.a = [1]


class SlottedWithDict(Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.b = {"c": 2}


class OtherBase:
    pass


class TwoBases(Plain, OtherBase):
    pass


class ManyItems(dict[str, int]):
    def __init__(self) -> None:
        super().__init__({str(number): number for number in range(5000)})
        self.a = [1]


class OwnDict:
    """With a dictionary of another kind, as EasyDict and others have."""

    def __init__(self) -> None:
        self.__dict__ = OrderedDict(a=[1], b={"c": 2})


class BaseInC(SimpleQueue):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.a, self.b = [1], {"c": 2}


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]


class OfUnhashable(metaclass=Unhashable):
    def __init__(self) -> None:
        self.a, self.b = [1], {"c": 2}


class Asking(Plain):
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")

    @property
    def c(self) -> Any:
        raise AssertionError("its code was run")


@pytest.mark.parametrize("is_asked", [False, True], ids=["as it was made", "after its dictionary was asked for"])
@pytest.mark.parametrize(
    "kind",
    [Plain, OneDict, Empty, Slotted, SlottedWithDict, TwoBases, ManyItems, OwnDict, BaseInC, OfUnhashable, Asking],
    ids=lambda kind: kind.__name__,
)
def test_what_is_held_is_what_attributes_name(kind: type, is_asked: bool) -> None:
    value = kind()
    if is_asked and kind is not Slotted:
        assert isinstance(value.__dict__, dict)
    held = [id(part) for part in held_by(value)]
    named = [id(part) for _, part in attributes_of(value)]
    assert set(held) == set(named)


def _keeps_a_dictionary(value: Any) -> bool:
    """True if Python keeps the attributes of an object with two of them in a dictionary."""
    return any(type(part) is dict for part in gc.get_referents(value))


class Watched(torch.utils.data.Dataset[int]):
    """Samples tell whether somebody has asked this dataset, where it is, for its dictionary."""

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
def test_loaders_leave_attributes_quick(options: dict[str, Any]) -> None:
    dataset = Watched()
    with closing(feedline.DataLoader(dataset, batch_size=8, **{"num_workers": 2, **options})) as loader:
        told = [int(batch.sum()) for _ in range(2) for batch in loader]
    assert told == [0] * 16
    assert not _keeps_a_dictionary(dataset)


@needs_arrays
def test_the_dictionary_counts_once_it_was_asked_for() -> None:
    dataset = Watched()
    assert dataset.__dict__
    with closing(feedline.DataLoader(dataset, batch_size=8, num_workers=2)) as loader:
        assert [int(batch.sum()) for batch in loader] == [8] * 8


def test_a_handle_is_found_wherever_it_is() -> None:
    class Inner:
        def __init__(self, value: Any) -> None:
            self.value, self.other = value, 1

    handle = Empty()
    for inside in (handle, [handle], {"x": (Inner([handle]),)}, Inner(Inner({"y": handle}))):
        assert holds(Inner(inside), (Empty,))
    assert not holds(Inner(Inner([2])), (Empty,))
