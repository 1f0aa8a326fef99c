"""The kinds of columns, one for each kind of values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.sharing.column import Column
from feedline.sharing.packed import Packed
from feedline.values import records


# Any, throughout: values of any kind.
@dataclass(eq=False)
class Numbers(Column):
    """Numbers of Python, all of one type, as an array."""

    _array: NDArray[Any]

    def __len__(self) -> int:
        return len(self._array)

    def get(self, place: int) -> Any:
        return self._array.item(place)

    @property
    def nbytes(self) -> int:
        return self._array.nbytes


@dataclass(eq=False)
class Rows(Column):
    """Arrays of one shape and type, stacked; numbers of NumPy are arrays without axes."""

    _stacked: NDArray[Any]

    def __len__(self) -> int:
        return len(self._stacked)

    def get(self, place: int) -> Any:
        row = self._stacked[place]
        return row.copy() if isinstance(row, np.ndarray) else row

    @property
    def nbytes(self) -> int:
        return self._stacked.nbytes


class Records(Column):
    """Values that differ in kind, each as a record."""

    def __init__(self, values: Sequence[Any]) -> None:
        self._packed = Packed(map(records.encode, values), is_text=False)

    def __len__(self) -> int:
        return len(self._packed)

    def get(self, place: int) -> Any:
        return records.decode(self._packed.get_bytes(place), copy=True)

    @property
    def nbytes(self) -> int:
        return self._packed.nbytes


@dataclass(eq=False)
class Fields(Column):
    """Dicts with the same keys, or tuples, lists and named tuples of one length: a column for each field."""

    _kind: type
    _keys: tuple[Any, ...] | None
    """None if it has no keys."""
    _columns: list[Column]

    def __len__(self) -> int:
        return len(self._columns[0])

    def get(self, place: int) -> Any:
        values = [column.get(place) for column in self._columns]
        if self._keys is not None:
            return dict(zip(self._keys, values, strict=True))
        return self._kind(*values) if hasattr(self._kind, "_fields") else self._kind(values)

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in self._columns)


@dataclass(eq=False)
class Ragged(Column):
    """Lists or tuples of different lengths: all their items one after the other."""

    _kind: type
    _stops: NDArray[np.int64]
    _items: Column

    def __len__(self) -> int:
        return len(self._stops)

    def get(self, place: int) -> Any:
        start = self._stops.item(place - 1) if place else 0
        return self._kind(self._items.each(range(start, self._stops.item(place))))

    @property
    def nbytes(self) -> int:
        return self._stops.nbytes + self._items.nbytes


@dataclass(eq=False)
class Parts(Column):
    """A few values that are large: lists and dicts that are shared themselves, arrays, which can be read only."""

    _values: list[Any]
    """Those; and for each short one among them a column with nothing else, which it is copied out of."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, place: int) -> Any:
        value = self._values[place]
        if isinstance(value, np.ndarray):  # too large to be copied each time
            value = value.view()
            value.flags.writeable = False
        return value.get(0) if isinstance(value, Column) else value

    @property
    def nbytes(self) -> int:
        return sum(getattr(value, "nbytes", 0) for value in self._values)
