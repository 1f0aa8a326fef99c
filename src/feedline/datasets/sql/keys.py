"""The keys of all samples, packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.sharing.packed import Packed

_INT64 = range(-(1 << 63), 1 << 63)


class Keys:
    """Keys in the order of samples: 8 bytes for an integer, a few for a string.

    Keys of another kind, such as dates, are kept as the objects that they are.

    Args:
        values: the keys.

    Example:
        >>> keys = Keys(["a", "bc", "d"])
        >>> len(keys), keys.at([2, 1])
        (3, ['d', 'bc'])
    """

    # Any: keys of any kind.
    def __init__(self, values: Sequence[Any]) -> None:
        kinds = set(map(type, values))
        kind = kinds.pop() if len(kinds) == 1 else object
        self._values: Any = list(values)
        if kind is int and min(values) in _INT64 and max(values) in _INT64:
            self._values = np.array(values, np.int64)
        elif kind in (str, bytes):
            self._values = Packed(values, is_text=kind is str)

    def __len__(self) -> int:
        return len(self._values)

    def at(self, indices: Any) -> list[Any]:
        """Return the keys of some samples."""
        if isinstance(self._values, np.ndarray):
            found: list[Any] = self._values[np.asarray(indices, np.int64)].tolist()
            return found
        get = self._values.get if isinstance(self._values, Packed) else self._values.__getitem__
        return [get(int(index)) for index in indices]


def repeated(values: Sequence[Any]) -> Any:
    """Return a value that comes more than once, or None."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
