"""Some samples of a dataset, as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.selection import Selection


class Subset(Selection):
    """The samples of a map-style dataset at given indices; `feedline.split` makes it.

    It has what torch's `Subset` has, but `indices` is one array. Pickled, it takes its dataset along.

    Example:
        >>> import numpy as np
        >>> subset = Subset("abcdef", np.array([1, 3]))
        >>> subset, subset[0], subset[-1]
        (Subset(2 of 6 samples of a str), 'b', 'd')
    """

    # Any: a dataset is any object that fits.
    def __init__(self, dataset: Any, indices: NDArray[np.int64]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __len__(self) -> int:
        return len(self.indices)

    # Any: an integer; torch's Subset also hands a list on, to datasets that understand it.
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list):
            return self.dataset[self.indices[index].tolist()]
        return self.dataset[int(self.indices[index])]

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    @property
    def __getitems__(self) -> Callable[[Iterable[int]], list[Any]] | None:
        """Returns the samples of several indices. None unless the dataset can do that: loaders look for it."""
        return self._several if callable(getattr(self.dataset, "__getitems__", None)) else None

    def _several(self, indices: Iterable[int]) -> list[Any]:
        found: list[Any] = self.dataset.__getitems__(self.indices[np.fromiter(indices, np.int64)].tolist())
        return found

    def __repr__(self) -> str:
        kind = type(self.dataset).__name__
        return f"Subset({len(self.indices)} of {len(self.dataset)} samples of a {kind})"
