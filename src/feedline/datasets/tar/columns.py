"""Samples of a batch read as columns: arrays go from the shard to where the batch is wanted, one at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc import memory
from feedline.datasets.tar.arrays import view_of_npy
from feedline.datasets.tar.ranges import Span
from feedline.errors import CorruptSource


class Unlike(Exception):
    """Samples do not make columns: shapes differ, or a field is missing or damaged."""


class Columns:
    """The columns of a batch, while they are filled.

    Args:
        plan: name and kind of each field, as `TarForm.columns` says.
        raws: the samples, with `__key__` and `__url__`; their other fields are put in.
    """

    # Any: samples as they stand in shards.
    def __init__(self, plan: list[tuple[str, str]], raws: list[dict[str, Any]]) -> None:
        self._plan = plan
        self._raws = raws
        self._arrays: dict[str, NDArray[Any] | None] = {name: None for name, kind in plan if kind == "npy"}

    def take(self, span: Span, data: bytes) -> None:
        """Take in what was read.

        Raises:
            Unlike: an array is not like the others.
        """
        for one in span.ranges:
            start, stop = one.start - span.start, one.stop - span.start
            if one.name in self._arrays:
                self._put(one.name, one.row, data, start, stop)
            else:
                one.sample[one.name] = data[start:stop]

    def _put(self, name: str, row: int, data: bytes, start: int, stop: int) -> None:
        try:
            found = view_of_npy(data, start, stop)
        except (ValueError, CorruptSource):
            raise Unlike from None  # the sample itself has the right error for it
        if found is None or found.ndim == 0:
            raise Unlike
        column = self._arrays[name]
        if column is None:
            if found.dtype.kind not in "biufc" or not found.dtype.isnative:
                raise Unlike
            column = self._arrays[name] = memory.empty((len(self._raws), *found.shape), found.dtype)
        if found.shape != column.shape[1:] or found.dtype != column.dtype:
            raise Unlike
        column[row] = found

    # Any: an array, or a list of strings or bytes.
    def result(self) -> list[Any]:
        """Return the columns, in the order of the plan.

        Raises:
            Unlike: a value is missing or damaged.
        """
        return [self._arrays[name] if kind == "npy" else self._column(name, kind) for name, kind in self._plan]

    def _column(self, name: str, kind: str) -> Any:
        try:
            values = [raw[name] for raw in self._raws]
            if kind == "text":
                return [value.decode("utf-8") for value in values]
            if kind != "int":
                return values
            column = memory.empty((len(values),), np.dtype(np.int64))
            column[:] = [int(value) for value in values]
            return column
        except (KeyError, ValueError, OverflowError):
            raise Unlike from None
