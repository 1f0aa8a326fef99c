"""The contract of columns, which store values, and how values are compared."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from feedline.system.optional import is_tensor


class Column(ABC):
    """Values in a few arrays. A column never changes, so threads and processes can read it concurrently."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many values there are."""

    @abstractmethod
    def get(self, place: int) -> object:
        """Return a copy of one value; `place` is in range and not negative."""

    def each(self, places: Iterable[int]) -> Iterator[object]:
        """Yield the values at several places."""
        return map(self.get, places)

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of memory that the values take."""


# Any: a buffer; type checkers do not accept an array for memoryview.
def view_of(array: Any) -> memoryview:
    """Return an array as a memoryview, which reads single values several times faster."""
    return memoryview(array)


def is_same(one: Any, other: Any) -> bool:
    """Compare values as `==` does, including values with arrays inside, which `==` cannot compare."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return isinstance(one, np.ndarray) and isinstance(other, np.ndarray) and np.array_equal(one, other)
    if is_tensor(one) or is_tensor(other):
        return is_tensor(one) and is_tensor(other) and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return len(one) == len(other) and all(key in other and is_same(one[key], other[key]) for key in one)
    if _is_container(one) and type(one) is type(other):
        return len(one) == len(other) and all(map(is_same, one, other))
    return bool(one == other)


def _is_container(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
