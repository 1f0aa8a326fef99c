"""`flat_map`: any number of samples from each one; `filter`: some of them; `unbatch`: the samples of batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, compress
from typing import Any

from feedline.errors import BadOption
from feedline.pipes.calling import Caller, Function, agree, checked_function, name_of
from feedline.pipes.cursor import Cursor, OperatorCursor, Stopped
from feedline.pipes.lap import Lap, Samples
from feedline.pipes.stage import StreamStage

_MOST = 256
"""The most samples to try at a time if only one is needed: few of them may pass a filter."""


class FlatMap(StreamStage):
    """The samples that a function makes from each sample of a stream; or, for a filter, those for which it is true."""

    def __init__(self, source: StreamStage, function: Function, label: str = "", *, filters: bool = False) -> None:
        name = "filter" if filters else "flat_map"
        super().__init__(source, label=label or f"{name}({name_of(function)})")
        checked_function(name, function)
        self.filters = filters
        called = function if filters else _Lists(function, self.label)
        self.call = Caller(self.label, called, self.depth, filters=filters)

    def open(self, lap: Lap) -> Cursor:
        return _FlatCursor(self.parts[0].open(lap), lap, self)


@dataclass(frozen=True)
class _Lists:
    """The function, with its results as lists: a generator runs here, where its errors are noticed."""

    function: Function
    label: str

    def __call__(self, sample: object) -> Samples:
        return _listed(self.function(sample), self.label)


def _listed(result: object, label: str) -> Samples:
    if isinstance(result, (str, bytes, Mapping)) or not isinstance(result, Iterable):
        raise BadOption(
            f"The function of {label} returned a {type(result).__name__}. It must return the samples that it makes "
            "from one sample: a list, or any other iterable of samples, which may be empty."
        )
    return list(result)


class _FlatCursor(OperatorCursor):
    def __init__(self, source: Cursor, lap: Lap, stage: FlatMap) -> None:
        super().__init__(source, lap)
        self._stage = stage
        self._chunk = 1

    def _need(self, count: int) -> int:
        if not self._stage.filters:
            return count
        self._chunk = min(2 * self._chunk, _MOST)  # begins with few, so that the first sample comes soon
        return max(count, self._chunk)

    def _process(self, items: Samples, first: int) -> Samples:
        draws, numbers = self._lap.draws(first, len(items)), range(first, first + len(items))
        try:
            return self._joined(items, self._stage.call(items, draws, numbers), first)
        except Stopped as stop:
            raise Stopped(stop.reason, self._joined(items, stop.made, first), stop.items, stop.rest) from None

    def _joined(self, items: Samples, results: Samples, first: int) -> Samples:
        counts = results if self._stage.filters else list(map(len, results))
        agree((self._stage.identity, self._lap), self._stage.label, first, counts)
        return list(compress(items, results)) if self._stage.filters else list(chain.from_iterable(results))


# Any: a batch of any structure.
def rows_of(batch: Any) -> Samples:
    """Return the samples of a batch: of a list, or of arrays or tensors in dicts, tuples or on their own.

    Example:
        >>> import numpy as np
        >>> rows_of({"x": np.array([1, 2]), "name": ["a", "b"]})
        [{'x': np.int64(1), 'name': 'a'}, {'x': np.int64(2), 'name': 'b'}]
    """
    if isinstance(batch, Mapping):
        columns = [rows_of(column) for column in batch.values()]
        _check_equal(columns, batch)
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(batch, tuple):
        columns = [rows_of(column) for column in batch]
        _check_equal(columns, batch)
        build = getattr(type(batch), "_make", tuple)
        return [build(row) for row in zip(*columns, strict=True)]
    if isinstance(batch, (str, bytes)) or not hasattr(batch, "__len__"):
        raise BadOption(f"unbatch() needs batches, but a sample of its source is a {type(batch).__name__}.")
    return list(batch)


def _check_equal(columns: list[Samples], batch: object) -> None:
    if len({len(column) for column in columns}) > 1:
        sizes = ", ".join(str(len(column)) for column in columns)
        raise BadOption(
            f"unbatch() needs batches whose fields have one length, but this {type(batch).__name__} has "
            f"fields of {sizes}."
        )
