"""The keys of all samples, packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INT64 = range(-(1 << 63), 1 << 63)


class Keys:
    """Keys in the order of samples: 8 bytes for an integer, its UTF-8 and 8 bytes for a string.

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
        self._kind = kinds.pop() if len(kinds) == 1 else object
        self._count = len(values)
        self._offsets: NDArray[np.int64] | None = None
        self._values: Any
        if self._kind is int and min(values) in _INT64 and max(values) in _INT64:
            self._values = np.array(values, np.int64)
        elif self._kind in (str, bytes):
            parts = [value.encode("utf-8", "surrogatepass") if self._kind is str else value for value in values]
            self._offsets = np.zeros(len(parts) + 1, np.int64)
            np.cumsum([len(part) for part in parts], out=self._offsets[1:])
            self._values = b"".join(parts)
        else:
            self._kind, self._values = object, list(values)

    def __len__(self) -> int:
        return self._count

    def at(self, indices: Any) -> list[Any]:
        """Return the keys of some samples."""
        if self._kind is int:
            found: list[Any] = self._values[np.asarray(indices, np.int64)].tolist()
            return found
        if self._offsets is None:
            return [self._values[index] for index in indices]
        places = np.asarray(indices, np.int64)
        spans = zip(self._offsets[places].tolist(), self._offsets[places + 1].tolist(), strict=True)
        parts = [self._values[start:stop] for start, stop in spans]
        return [part.decode("utf-8", "surrogatepass") for part in parts] if self._kind is str else parts

    @property
    def nbytes(self) -> int:
        """How much memory packed keys take."""
        if self._kind is int:
            return int(self._values.nbytes)
        return 0 if self._offsets is None else len(self._values) + self._offsets.nbytes


def repeated(values: Sequence[Any]) -> Any:
    """Return a value that comes more than once, or None."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
