"""Indices are taken by value."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from feedline.samplers.taken import taken, taken_each


class Pair(NamedTuple):
    name: str
    places: list[int]


class Fancy(list[int]):
    name = "fancy"


@dataclasses.dataclass
class Crop:
    index: int
    box: list[int]


class Mark:
    """A hashable object without a copy of its own."""


class Stubborn(list[int]):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("no copies")


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "list": (lambda: [1, 2], lambda value: value.append(3)),
    "list of lists": (lambda: [1, [2, [3]]], lambda value: value[1][1].append(4)),
    "tuple of lists": (lambda: (1, [2]), lambda value: value[1].append(3)),
    "named tuple": (lambda: Pair("a", [1]), lambda value: value.places.append(3)),
    "dict": (lambda: {"a": [1]}, lambda value: value["a"].append(3)),
    "set": (lambda: {1}, lambda value: value.add(2)),
    "array": (lambda: np.arange(3), lambda value: value.fill(7)),
    "array of objects": (lambda: np.array([[1], [2, 3]], dtype=object), lambda value: value[0].append(7)),
    "tensor": (lambda: torch.arange(3), lambda value: value.fill_(7)),
    "list of another class": (lambda: Fancy([1]), lambda value: value.append(3)),
    "dataclass": (lambda: Crop(1, [2]), lambda value: value.box.append(3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_taken_index_does_not_change_with_the_yielded_one(name: str) -> None:
    make, change = CHANGES[name]
    yielded = make()
    kept = taken(yielded)
    assert type(kept) is type(yielded)
    before = repr(kept)
    change(yielded)
    assert repr(kept) == before
    assert repr(yielded) != before


@pytest.mark.parametrize(
    "value", [3, "a", b"a", None, 2.5, range(3), np.int64(3), (1, "a"), (1, (2, 3)), Mark(), frozenset({1}), slice]
)
def test_immutable_indices_are_not_copied(value: Any) -> None:
    assert taken(value) is value


def test_indices_that_cannot_be_copied_are_used_directly() -> None:
    stubborn = Stubborn([1])
    assert taken(stubborn) is stubborn


def test_each_index_is_copied_when_it_is_yielded() -> None:
    buffer = [0]

    def numbers() -> Iterator[list[int]]:
        for buffer[0] in range(3):
            yield buffer

    assert taken_each(numbers()) == [[0], [1], [2]]
