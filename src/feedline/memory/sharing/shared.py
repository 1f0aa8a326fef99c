"""A list and a dict that all workers share."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.system.sizes import bytes_text

_SHOWN = 3
"""Values, or keys, that a repr shows."""


class Column(Protocol):
    """Values in a few arrays. A column never changes, so threads and processes can read it concurrently."""

    def __len__(self) -> int:
        """Return how many values there are."""

    def get(self, place: int) -> object:
        """Return a copy of one value; `place` is in range and not negative."""

    def each(self, places: Iterable[int]) -> Iterator[object]:
        """Yield the values at several places."""
        return map(self.get, places)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the values take."""


# Any, throughout: values of any kind.
class SharedList(Sequence[Any]):
    """A sequence whose values are stored in a few arrays; made by `feedline.share`.

    It cannot be changed. It equals a list (or a tuple, if it was made from one) with the same values. A slice is
    another view of the same memory.
    """

    def __init__(self, column: Column, kind: type, places: range | None = None) -> None:
        self._column = column
        self._kind = kind
        self._places = range(len(column)) if places is None else places

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return SharedList(self._column, self._kind, self._places[index])
        try:
            place = self._places[index]
        except IndexError:
            raise IndexError(f"index {index} is out of range for a list of {len(self)} values") from None
        return self._column.get(place)

    def __iter__(self) -> Iterator[Any]:
        return self._column.each(self._places)

    def __reversed__(self) -> Iterator[object]:
        return self._column.each(self._places[::-1])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedList):
            is_alike = other._kind is self._kind
        elif isinstance(other, (list, tuple)):
            is_alike = isinstance(other, self._kind)
        else:
            return NotImplemented
        return is_alike and len(self) == len(other) and all(map(operator.eq, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    @property
    def nbytes(self) -> int:
        """The memory of all values, including those that a slice leaves out."""
        return self._column.nbytes

    def __repr__(self) -> str:
        shown = [repr(value) for value in islice(self, _SHOWN)] + ["..."] * (len(self) > _SHOWN)
        return f"SharedList([{', '.join(shown)}], {len(self)} values in {bytes_text(self.nbytes)})"


class SharedDict(Mapping[Any, Any]):
    """A mapping whose keys and values are stored in a few arrays; made by `feedline.share`.

    It cannot be changed, keeps its order, and equals a dict with the same keys and values.

    Lookup is a binary search in the sorted hashes of the keys. Python's own hash cannot be used: for strings, it
    differs between processes.
    """

    def __init__(self, keys: Column, values: Column) -> None:
        self._keys = keys
        self._values = values
        numbers = np.fromiter(map(number_of, keys.each(range(len(keys)))), np.uint32, len(keys))
        order = np.argsort(numbers, kind="stable")
        self._numbers: NDArray[np.uint32] = numbers[order]
        self._order = order.astype(np.min_scalar_type(max(len(keys) - 1, 0)))

    def __len__(self) -> int:
        return len(self._keys)

    def _find(self, key: object) -> int | None:
        number = number_of(key)
        at = int(self._numbers.searchsorted(np.uint32(number)))
        while at < len(self._numbers) and self._numbers.item(at) == number:
            place: int = self._order.item(at)
            if self._keys.get(place) == key:
                return place
            at += 1
        return None

    def __getitem__(self, key: object) -> Any:
        place = self._find(key)
        if place is None:
            raise KeyError(key)
        return self._values.get(place)

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def __iter__(self) -> Iterator[Any]:
        return self._keys.each(range(len(self._keys)))

    @property
    def nbytes(self) -> int:
        """The memory of the keys, the values and the lookup table."""
        return self._keys.nbytes + self._values.nbytes + self._numbers.nbytes + self._order.nbytes

    def __repr__(self) -> str:
        shown = [f"{key!r}: {value!r}" for key, value in islice(self.items(), _SHOWN)] + ["..."] * (len(self) > _SHOWN)
        return f"SharedDict({{{', '.join(shown)}}}, {len(self)} keys in {bytes_text(self.nbytes)})"


def number_of(key: object) -> int:
    """Return a hash of a key below 2**32 that is the same for equal keys in every process.

    Raises TypeError: the key is not hashable.
    """
    if isinstance(key, str):
        return zlib.crc32(key.encode("utf-8", "surrogatepass"))
    if isinstance(key, bytes):
        return zlib.crc32(key)
    if isinstance(key, tuple):
        number = len(key)
        for part in key:
            number = zlib.crc32(number_of(part).to_bytes(4, "little"), number)
        return number
    return 0 if key is None else hash(key) & 0xFFFFFFFF  # the hashes of numbers are the same everywhere
