"""`feedline.share`: the columns that store values, and which column each kind of value gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.memory.sharing import records
from feedline.memory.sharing.column import Column
from feedline.memory.sharing.packed import Packed
from feedline.memory.sharing.records import NotARecord
from feedline.memory.sharing.shared import SharedDict, SharedList
from feedline.system.optional import is_tensor


@dataclass(eq=False)
class Rows(Column):
    """Arrays of one shape and type, stacked; NumPy scalars are arrays without axes."""

    _held: Any
    """An array, or another column: something with a length and `nbytes`."""

    def __len__(self) -> int:
        return len(self._held)

    def get(self, place: int) -> object:
        row = self._held[place]
        return row.copy() if isinstance(row, np.ndarray) else row

    @property
    def nbytes(self) -> int:
        size: int = self._held.nbytes
        return size


class Numbers(Rows):
    """Python numbers, all of one type, as an array."""

    def get(self, place: int) -> object:
        return self._held.item(place)


class Records(Rows):
    """Values of different kinds, each encoded as a record."""

    def __init__(self, values: Sequence[object]) -> None:
        super().__init__(Packed(map(records.encode, values), is_text=False))

    def get(self, place: int) -> object:
        return records.decode(self._held.get_bytes(place), copy=True)


@dataclass(eq=False)
class Fields(Column):
    """Dicts with the same keys, or tuples, lists and named tuples of one length: a column for each field."""

    _kind: type
    _keys: tuple[object, ...] | None
    """None for tuples and lists."""
    _columns: list[Column]

    def __len__(self) -> int:
        return len(self._columns[0])

    def get(self, place: int) -> object:
        values = [column.get(place) for column in self._columns]
        if self._keys is not None:
            return dict(zip(self._keys, values, strict=True))
        return self._kind(*values) if hasattr(self._kind, "_fields") else self._kind(values)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns)


@dataclass(eq=False)
class Ragged(Column):
    """Lists or tuples of different lengths: all their items in one column, one after the other."""

    _kind: type
    _stops: NDArray[np.int64]
    _items: Column

    def __len__(self) -> int:
        return len(self._stops)

    def get(self, place: int) -> object:
        start = self._stops.item(place - 1) if place else 0
        return self._kind(self._items.each(range(start, self._stops.item(place))))

    @property
    def nbytes(self) -> int:
        return self._stops.nbytes + self._items.nbytes


@dataclass(eq=False)
class Parts(Column):
    """A few large values: lists and dicts that are shared themselves, and arrays, which are read-only."""

    _values: list[object]
    """The large values; each short one among them is a column of its own with one value, which is copied when read."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, place: int) -> object:
        value = self._values[place]
        if isinstance(value, np.ndarray):  # too large to be copied each time
            value = value.view()
            value.flags.writeable = False
        return value.get(0) if isinstance(value, Column) else value

    @property
    def nbytes(self) -> int:
        return sum(getattr(value, "nbytes", 0) for value in self._values)


_LONG = 1000
"""A list of this many items inside another is shared itself, not copied when read. A guess, not measured."""

_LARGE_BYTES = 1 << 16
"""The same for arrays."""

_FEW = 10_000
"""Up to this many values may stay Python objects, if some of them are long."""

_INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")
_NUMBERS: dict[type, type[np.generic]] = {bool: np.bool_, float: np.float64, complex: np.complex128}


# Any: a list or dict that looks like the given one; below, values of any kind.
def share(values: object) -> Any:
    """Store a list or dict once for all workers, in a few arrays instead of one Python object for each value.

    Workers that read a Python list gradually copy it, because reading an object writes its reference count. A list also
    takes several times the memory of its data. All workers read the result of this function from the same memory,
    whichever way they are started, and reading a value copies only that value. The result looks like the original: a
    `collections.abc.Sequence` or `Mapping` that equals it, but cannot be changed.

    Args:
        values: a list, tuple or dict of strings, bytes, numbers, arrays, tensors, or of lists, tuples, dicts and named
            tuples of these, nested in any way. Keys are strings, bytes, numbers or tuples of these. Arrays and tensors
            by themselves are returned unchanged, because the loader shares them anyway.

    Returns:
        A `SharedList` or `SharedDict`. Lists inside are copied when they are read, but shared themselves if they are
        long (1,000 items on average).

    Raises:
        TypeError: it is not a list or dict, or contains a value of another type.

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
    try:
        if isinstance(values, Mapping):
            return SharedDict(column_of(list(values)), column_of(list(values.values())))
        if isinstance(values, (str, bytes, bytearray, memoryview)) or not isinstance(values, Sequence):
            raise NotARecord(
                f"feedline.share takes a list, tuple or dict, not a {type(values).__name__}. Convert it first, "
                "for instance with list(...)."
            )
        listed = values if isinstance(values, (list, tuple)) else list(values)
        return SharedList(column_of(listed), tuple if isinstance(values, tuple) else list)
    except NotARecord as exc:
        raise NotARecord(str(exc).replace("sample", "feedline.share: value", 1)) from exc


def column_of(values: Sequence[Any]) -> Column:
    """Return a column of the type that fits the values best."""
    kinds = set(map(type, values))
    if len(kinds) != 1:
        return _mixed(values)
    kind = kinds.pop()
    if kind is str or kind is bytes:
        return Packed(values, is_text=kind is str)
    if kind in _NUMBERS:
        return Numbers(np.array(values, _NUMBERS[kind]))
    if kind is int:
        return _integers(values)
    if kind is np.ndarray or issubclass(kind, np.generic):
        return _arrays(values)
    if kind is dict:
        return _dicts(values)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return _fields(kind, None, [[value[number] for value in values] for number in range(len(values[0]))], values)
    if kind is list or kind is tuple:
        return _lists(kind, values)
    return _mixed(values)


def _integers(values: Sequence[int]) -> Column:
    try:
        array = np.array(values, np.int64)
    except OverflowError:
        return Records(values)
    low, high = int(array.min()), int(array.max())
    limits = (np.iinfo(name) for name in _INTEGERS)
    return Numbers(array.astype(next(one.dtype for one in limits if one.min <= low and high <= one.max)))


def _arrays(values: Sequence[NDArray[np.generic]]) -> Column:
    if len({(value.dtype, value.shape) for value in values}) > 1:
        return Parts(list(values)) if _is_few_large(values) else Records(values)
    if values[0].dtype.hasobject:
        return Records(values)  # which raises an error that explains why
    return Rows(np.stack(values))


def _dicts(values: Sequence[dict[object, object]]) -> Column:
    keys = tuple(values[0])
    if sum(map(len, values)) >= _LONG * len(values):
        return Parts([share(value) for value in values])
    if keys and all(tuple(value) == keys for value in values):
        return _fields(dict, keys, [[value[key] for value in values] for key in keys], values)
    return _mixed(values)


def _lists(kind: type, values: Sequence[Sequence[object]]) -> Column:
    lengths = np.fromiter(map(len, values), np.int64, len(values))
    first = values[0]
    if lengths.sum() >= _LONG * len(values):
        return Parts([share(value) for value in values])
    is_record = 0 < len(first) <= 32 and (lengths == len(first)).all()
    if is_record and (kind is tuple or len(set(map(type, first))) > 1):
        return _fields(kind, None, [[value[number] for value in values] for number in range(len(first))], values)
    return Ragged(kind, np.cumsum(lengths), column_of(list(chain.from_iterable(values))))


def _fields(
    kind: type, keys: tuple[object, ...] | None, columns: list[list[object]], values: Sequence[object]
) -> Column:
    return Fields(kind, keys, [column_of(column) for column in columns]) if columns else Records(values)


def _mixed(values: Sequence[object]) -> Column:
    if not values:
        return Numbers(np.empty(0, np.bool_))
    if _is_few_large(values):
        return Parts([share(value) if _is_long(value) else column_of([value]) for value in values])
    return Records(values)


def _is_few_large(values: Sequence[object]) -> bool:
    return len(values) <= _FEW and any(map(_is_long, values))


def _is_long(value: object) -> bool:
    if isinstance(value, (list, tuple, Mapping)):
        return len(value) >= _LONG or any(map(_is_long, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, (SharedList, SharedDict)) or (
        isinstance(value, np.ndarray) and value.nbytes >= _LARGE_BYTES
    )
