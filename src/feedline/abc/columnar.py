"""The contract of datasets that consist only of arrays."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from feedline.errors import FeedlineError

Take = TypeVar("Take", bound=Callable[[NDArray[np.int64]], Any])


class Columnar(ABC):
    """A map-style dataset whose samples are rows of arrays.

    A loader with the default collate function makes a batch in one vectorised step per array, without reading single
    samples. This applies only to subclasses: a method of the same name on another dataset has no effect.

    Example:
        >>> import numpy as np
        >>> from feedline import Loader
        >>> from feedline.abc import Columnar
        >>> class Points(Columnar):
        ...     rows = np.arange(6).reshape(3, 2)
        ...     def __len__(self):
        ...         return len(self.rows)
        ...     def __getitem__(self, index):
        ...         return self.rows[index]
        ...     def columns(self):
        ...         return self.rows
        >>> [batch.tolist() for batch in Loader(Points(), 2)]
        [[[0, 1], [2, 3]], [[4, 5]]]
    """

    @abstractmethod
    def columns(self) -> Any:
        """Return the arrays: one, a tuple or a dict of them, each as long as the dataset.

        Sample i is row i of each, in the same form. Return None if that does not hold because samples are transformed.
        Called once per worker.
        """

    def row_check(self) -> Callable[[NDArray[np.int64]], None] | None:
        """Return a function that the loader calls with the row numbers it is about to read.

        The function raises an exception if one of these rows is damaged. Return None if there is nothing to check.
        Called once per worker, after `columns`.
        """
        return None


def checking(dataset: Columnar, take: Take | None) -> Take | None:
    """Return `take`, preceded by the dataset's row check if it has one."""
    check = None if take is None else dataset.row_check()
    if take is None or check is None:
        return take

    # Any: another row-reading function, and batches of any form.
    quick: Any = getattr(take, "quick", None)

    def take_checked(indices: NDArray[np.int64]) -> Any:
        check(indices)
        return take(indices)

    def quick_checked(indices: NDArray[np.int64]) -> Any:
        try:
            check(indices)
        except FeedlineError:
            return None  # `take_checked` raises the error later, where the task is known
        return quick(indices)

    found: Any = take_checked
    if quick is not None:
        found.quick = quick_checked
    return cast("Take", found)
