"""A list that all workers read from one place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from feedline.sharing.column import Column, is_same
from feedline.values.sizes import bytes_text

_SHOWN = 3
"""Values that a repr spells out."""


# Any, throughout: values of any kind.
class SharedList(Sequence[Any]):
    """A sequence whose values lie in a few arrays; see `feedline.share`, which makes it.

    It cannot be changed. It equals a list, or tuple if it was made of one, with the same values. A slice is another
    view of the same memory.
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

    def __reversed__(self) -> Iterator[Any]:
        return self._column.each(self._places[::-1])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, SharedList):
            other_kind: type = other._kind
        elif isinstance(other, (list, tuple)):
            other_kind = list if isinstance(other, list) else tuple
        else:
            return NotImplemented
        return self._kind is other_kind and len(self) == len(other) and all(map(is_same, self, other))

    __hash__ = None  # type: ignore[assignment]  # as a list

    @property
    def nbytes(self) -> int:
        """The memory of the values, those left out by a slice included."""
        return self._column.nbytes

    def __repr__(self) -> str:
        shown = [repr(value) for value in islice(self, _SHOWN)] + ["..."] * (len(self) > _SHOWN)
        return f"SharedList([{', '.join(shown)}], {len(self)} values in {bytes_text(self.nbytes)})"
