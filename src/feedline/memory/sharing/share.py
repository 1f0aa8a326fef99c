"""`feedline.share`: the columns that store values, and which column each kind of value gets."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.memory.sharing.packed import Packed
from feedline.memory.sharing.shared import Column, SharedDict, SharedList
from feedline.system.optional import is_tensor


class Rows(Column):
    """Python numbers of one type, or arrays of one shape and type, in one array."""

    def __init__(self, array: NDArray[Any], *, are_numbers: bool) -> None:
        self._array = array
        self._are_numbers = are_numbers

    def __len__(self) -> int:
        return len(self._array)

    def get(self, place: int) -> object:
        return self._array.item(place) if self._are_numbers else self._array[place].copy()

    @property
    def nbytes(self) -> int:
        return self._array.nbytes


class Pickles(Packed):
    """Values of any kind, each pickled by itself."""

    def __init__(self, values: Iterable[object]) -> None:
        try:
            pickled = [pickle.dumps(value, 5) for value in values]
        except (pickle.PicklingError, AttributeError, RecursionError) as exc:
            raise TypeError(f"feedline.share: a value cannot be pickled: {exc}") from exc
        super().__init__(pickled, is_text=False)

    def _value(self, stored: bytes) -> object:
        return pickle.loads(stored)


class Parts(Column):
    """A few values, some of them large: lists and dicts that are shared themselves, and arrays, which are read-only."""

    def __init__(self, values: Sequence[object]) -> None:
        self._large = {place: share(value) for place, value in enumerate(values) if _is_large(value)}
        self._others = Pickles(None if place in self._large else value for place, value in enumerate(values))

    def __len__(self) -> int:
        return len(self._others)

    def get(self, place: int) -> object:
        if place not in self._large:
            return self._others.get(place)
        value = self._large[place]
        if isinstance(value, np.ndarray):
            value = value.view()
            value.flags.writeable = False
        return value

    @property
    def nbytes(self) -> int:
        return self._others.nbytes + sum(value.nbytes for value in self._large.values())


_LONG = 1000
"""A list of this many items inside another is shared itself, not copied when read. A guess, not measured."""

_LARGE_BYTES = 1 << 16
"""The same for arrays."""

_FEW = 10_000
"""Up to this many values may stay Python objects, if some of them are large."""

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


# Any: a list or dict that looks like the given one; below, values of any kind.
def share(values: object) -> Any:
    """Store a list or dict once for all workers, in a few arrays instead of one Python object for each value.

    Workers that read a Python list gradually copy it, because reading an object writes its reference count. A list also
    takes several times the memory of its data. All workers read the result of this function from the same memory,
    whichever way they are started, and reading a value copies only that value. The result looks like the original: a
    `collections.abc.Sequence` or `Mapping` that equals it, but cannot be changed.

    Args:
        values: a list, tuple or dict of strings, bytes, numbers, arrays, or of anything else that can be pickled. Keys
            are strings, bytes, numbers or tuples of these. Arrays and tensors by themselves are returned unchanged,
            because the loader shares them anyway.

    Returns:
        A `SharedList` or `SharedDict`. Lists inside are copied when they are read, but shared themselves if they are
        long (1,000 items), and there are at most 10,000 of them.

    Raises:
        TypeError: it is not a list or dict, or contains a value that cannot be pickled.

    Example:
        >>> import feedline
        >>> paths = feedline.share([f"train/cat/{number:06d}.jpg" for number in range(100_000)])
        >>> paths[-1]
        'train/cat/099999.jpg'
        >>> len(paths), paths.nbytes < 800_000
        (100000, True)
        >>> feedline.share({"cat": 0, "dog": 1})["dog"]
        1
    """
    if isinstance(values, (SharedList, SharedDict, np.ndarray)) or is_tensor(values):
        return values
    if isinstance(values, Mapping):
        for key in values:
            _check_key(key)
        return SharedDict(column_of(list(values)), column_of(list(values.values())))
    if isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Sequence):
        raise TypeError(
            f"feedline.share takes a list, tuple or dict, not a {type(values).__name__}. Convert it first, "
            "for instance with list(...)."
        )
    return SharedList(column_of(values), tuple if isinstance(values, tuple) else list)


def _check_key(key: object) -> None:
    if isinstance(key, tuple):
        for part in key:
            _check_key(part)
    elif key is not None and not isinstance(key, (str, bytes, Number)):
        raise TypeError(
            f"feedline.share: the key {key!r} is a {type(key).__name__}. Use strings, bytes or numbers as keys."
        )


def column_of(values: Sequence[Any]) -> Column:
    """Return a column of the type that fits the values best."""
    kinds = set(map(type, values))
    kind = kinds.pop() if len(kinds) == 1 else object
    if kind is str or kind is bytes:
        return Packed(values, is_text=kind is str)
    if kind is bool or kind is float:
        return Rows(np.array(values), are_numbers=True)
    if kind is int and (dtype := _integer_type(min(values), max(values))) is not None:
        return Rows(np.array(values, dtype), are_numbers=True)
    if (kind is np.ndarray or issubclass(kind, np.generic)) and _are_alike(values):
        return Rows(np.stack(values), are_numbers=False)
    if len(values) <= _FEW and any(map(_is_large, values)):
        return Parts(values)
    return Pickles(values)


def _integer_type(low: int, high: int) -> np.dtype[Any] | None:
    limits = map(np.iinfo, _INTEGERS)
    return next((one.dtype for one in limits if one.min <= low and high <= one.max), None)


def _are_alike(values: Sequence[NDArray[np.generic]]) -> bool:
    return len({(value.dtype, value.shape) for value in values}) == 1 and not values[0].dtype.hasobject


_ATOMS = frozenset((int, float, str, bytes, bool, type(None)))


def _is_large(value: object) -> bool:
    if isinstance(value, (list, tuple, Mapping)):
        parts = value.values() if isinstance(value, Mapping) else value
        return len(value) >= _LONG or any(_is_large(part) for part in parts if type(part) not in _ATOMS)
    return isinstance(value, (SharedList, SharedDict)) or (
        isinstance(value, np.ndarray) and value.nbytes >= _LARGE_BYTES
    )
