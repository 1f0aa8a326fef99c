"""`feedline.share`: a list and a dict that all workers share, and the columns that store their values."""

from __future__ import annotations

import operator
import pickle
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from numbers import Number
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.memory.sharing.packed import Packed
from feedline.system.optional import is_tensor
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
        return self._others.nbytes + sum(int(value.nbytes) for value in self._large.values())


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
    limits = [np.iinfo(name) for name in _INTEGERS]
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
