"""Values of a field into the column of a batch: one rule for all sources, the one of the default collate function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Empty = Callable[[tuple[int, ...], np.dtype[Any]], NDArray[Any]]
"""Makes an array to be filled: ordinary memory, or the place where the batch is wanted."""

_NUMBERS = "biufc"
_TEXTS = {str, bytes}
_PLAIN: dict[type, np.dtype[Any]] = {int: np.dtype(np.int64), float: np.dtype(np.float64), bool: np.dtype(np.bool_)}


# Any, throughout: values of any kind; a column is an array or a list.
def is_column(column: Any) -> bool:
    """True if the default collate function would make this column of its values: numbers, or strings or bytes."""
    if isinstance(column, np.ndarray):
        return column.dtype.kind in _NUMBERS and column.dtype.isnative
    return {*map(type, column)} <= _TEXTS


def stacked(values: list[Any], empty: Empty) -> Any:
    """Stack numbers, or arrays of numbers of one shape and type; any other values are returned as they are.

    Example:
        >>> stacked([1, 2], np.empty), stacked([1, 2.5], np.empty), stacked(["a", "b"], np.empty)
        (array([1, 2]), [1, 2.5], ['a', 'b'])
    """
    kinds = {*map(type, values)}
    if len(kinds) != 1:
        return values
    (kind,) = kinds
    if kind is np.ndarray:
        return _stacked_arrays(values, empty)
    dtype = values[0].dtype if issubclass(kind, np.generic) else _PLAIN.get(kind)
    if dtype is None or dtype.kind not in _NUMBERS:
        return values
    column = empty((len(values),), dtype)
    try:
        column[:] = values
    except OverflowError:  # the collate function says it better
        return values
    return column


def _stacked_arrays(values: list[NDArray[Any]], empty: Empty) -> Any:
    dtype, shape = values[0].dtype, values[0].shape
    if dtype.kind not in _NUMBERS or not dtype.isnative:
        return values
    if any(value.shape != shape or value.dtype != dtype for value in values):
        return values
    column = empty((len(values), *shape), dtype)
    for row, value in enumerate(values):
        column[row] = value
    return column
