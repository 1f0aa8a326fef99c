"""What samples cost: one number for each, several at once, or a function of their indices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.samplers.labels import refuse_dataset
from feedline.samplers.seeded import refuse_sampler
from feedline.system.failures import add_note
from feedline.system.optional import is_tensor
from feedline.system.options import checked_count
from feedline.types import State

# Any: numbers of any kind; `_check` rejects others.
Values = NDArray[Any]

_PROBES = 1 << 12
"""Samples whose costs a function is asked for to estimate the mean."""


# object: lists, arrays or tensors, which have no common type.
def attention_cost(lengths: object, *, linear: float, documents: bool = False) -> NDArray[np.float64]:
    """Return the cost of transformer layers for sequences of these lengths: `length ** 2 + linear * length`.

    Attention compares every token with every other one; all else takes the same time for each token. `linear` is the
    length at which both take equally long: about 6 times the width of the model, or 12 times with causal attention.

    Args:
        lengths: the length of each sequence.
        linear: cost of a token outside attention, relative to a pair of tokens in it.
        documents: True if `lengths` has the lengths of the documents of one packed row: returns their sum.

    Example:
        >>> attention_cost([1000, 2000], linear=4000).tolist()
        [5000000.0, 12000000.0]
        >>> attention_cost([1000, 2000], linear=0, documents=True).tolist()
        5000000.0
    """
    array = np.asarray(lengths, np.float64)
    costs = array * (array + linear)
    return np.asarray(costs.sum()) if documents else costs


class SampleCosts:
    """The costs of samples, of one or more kinds.

    Args:
        costs: see `BalancedBatches`.
        num_samples: how many samples there are, if `costs` is a function.

    Raises:
        BadOption: costs are not numbers, negative, NaN or infinite, or have the wrong form.

    Example:
        >>> SampleCosts({"text": [1, 2], "images": [0, 5]}).at(np.array([1])).tolist()
        [[2, 5]]
    """

    # object: as above.
    def __init__(self, costs: object, num_samples: int | None = None) -> None:
        refuse_sampler("costs", costs)
        self._function: Callable[[Any], Any] | None = None
        self._columns: list[Values] = []
        self._means: dict[tuple[float, ...], float] = {}
        self._takes_arrays: bool | None = None
        """Whether the function takes an array of indices; None until it was called."""
        self.names: list[str] | None = None
        """The kinds of cost, if they have names."""
        if callable(costs) and not hasattr(costs, "__array__"):
            if num_samples is None:
                raise BadOption("costs is a function, so num_samples= must say how many samples there are.")
            self._function = costs
            self.count = checked_count("num_samples", num_samples)
            self.kinds = self.at(np.array([0])).shape[1]
            return
        if isinstance(costs, Mapping):
            self.names = [str(name) for name in costs]
            self._columns = [_column(f"costs[{name!r}]", column) for name, column in costs.items()]
            if not self._columns:
                raise BadOption("costs is an empty dict: give it an array of costs for each kind.")
            lengths = {name: len(column) for name, column in zip(costs, self._columns, strict=True)}
            if len({*lengths.values()}) > 1:
                raise BadOption(f"The arrays in costs must have one value per sample each, but have lengths {lengths}.")
        else:
            refuse_dataset("costs", costs, "[len(dataset[i]) for i in range(len(dataset))]")
            array = _array(costs)
            if array.ndim == 2 and array.shape[1]:
                self._columns = [_column(f"costs[:, {kind}]", array[:, kind]) for kind in range(array.shape[1])]
            else:
                self._columns = [_column("costs", array)]
        self.count = len(self._columns[0])
        self.kinds = len(self._columns)
        if self.count == 0:
            raise BadOption("costs is empty: there is nothing to make batches of.")
        if num_samples not in (None, self.count):
            raise BadOption(f"costs has {self.count} values, but num_samples={num_samples}. Drop num_samples.")

    def at(self, indices: IndexArray) -> Values:
        """Return the costs of samples: a row for each, a column for each kind; 64-bit integers or floats.

        Raises BadOption if a function returned something else. An exception in it is raised unchanged, with a note.
        """
        if self._function is None:
            values = np.stack([column[indices] for column in self._columns], axis=1)
            return values.astype(np.int64 if values.dtype.kind in "iub" else np.float64)
        values = self._computed(self._function, indices)
        if values.ndim == 1:
            values = values[:, None]
        _check("costs(index)", values, indices)
        return values.astype(np.int64 if values.dtype.kind in "iub" else np.float64)

    # Any: the user's function.
    def _computed(self, function: Callable[[Any], Any], indices: IndexArray) -> Values:
        if self._takes_arrays is None:
            self._takes_arrays = _takes_arrays(function)
        try:
            if self._takes_arrays:
                values = _array(function(indices.copy()))
            else:
                values = _array([_array(function(index)) for index in indices.tolist()])
        except Exception as exc:
            add_note(exc, f"costs= raised this for {len(indices)} samples: {indices[:5].tolist()}...")
            raise
        if values.ndim not in (1, 2) or len(values) != len(indices):
            raise BadOption(
                f"costs= was called with {len(indices)} indices and returned an array of shape {values.shape}. It must "
                "return one number for each index, or one row of numbers."
            )
        return values

    @cached_property
    def checksum(self) -> int | None:
        """A checksum of all costs; None for a function."""
        if self._function is not None:
            return None
        checksum = 0
        for column in self._columns:
            checksum = crc32(np.ascontiguousarray(column).data, checksum)
        return checksum

    def describe(self) -> State:
        """Return what a saved state must match."""
        return {"samples": self.count, "kinds": self.kinds, "checksum": self.checksum}

    def largest(self) -> tuple[NDArray[np.float64], IndexArray] | None:
        """Return the largest cost of each kind, and its sample; None if a function computes them."""
        if self._function is not None:
            return None
        where = np.array([int(column.argmax()) for column in self._columns])
        return np.array([float(column[at]) for column, at in zip(self._columns, where, strict=True)]), where

    def relative_mean(self, limits: tuple[float, ...]) -> float:
        """Return the mean cost of samples relative to limits, of the kind where it is largest; the same everywhere."""
        if limits not in self._means:
            self._means[limits] = self._relative_mean(limits)
        return self._means[limits]

    def _relative_mean(self, limits: tuple[float, ...]) -> float:
        means = []
        for kind, limit in enumerate(limits):
            if self._function is None:
                values = self._columns[kind]
            else:
                values = self.at(np.unique(np.linspace(0, self.count - 1, _PROBES).astype(np.int64)))[:, kind]
            total = 0
            for start in range(0, len(values), 1 << 20):  # as integers, whose sum is exact on every machine
                part = values[start : start + (1 << 20)].astype(np.float64)
                total += int(np.rint(part * ((1 << 30) / limit)).astype(np.int64).sum())
            means.append(total / len(values) / (1 << 30))
        return max(means)


# Any: the user's function.
def _takes_arrays(function: Callable[[Any], Any]) -> bool:
    """Return whether a function of an index also takes an array of them."""
    try:
        values = np.asarray(function(np.array([0, 0, 0])))
    except Exception:  # a function of one index may fail in any way; called with one, it raises its real errors
        return False
    return values.ndim in (1, 2) and len(values) == 3


def _array(values: Any) -> Values:
    return np.asarray(values.detach().cpu() if is_tensor(values) else values)


# object: a list, array or tensor.
def _column(name: str, values: object) -> Values:
    array = _array(values)
    if array.ndim != 1:
        raise BadOption(f"{name} has shape {array.shape}: it must have one number for each sample.")
    _check(name, array, None)
    return array


def _check(name: str, values: Values, indices: IndexArray | None) -> None:
    if len(values) == 0:
        return
    if values.dtype.kind not in "iufb":
        raise BadOption(f"{name} holds {values.dtype} values, for example {values.flat[0]!r}; it must hold numbers.")
    # A minimum, unlike a comparison, takes no memory, and it is NaN if any value is.
    if np.isfinite(values.max()) and values.min() >= 0:
        return
    place = tuple(np.argwhere(~(np.isfinite(values) & (values >= 0)))[0].tolist())
    where = place[0] if indices is None else int(indices[place[0]])
    raise BadOption(f"{name}, sample {where}: {values[place]} is not a cost. Costs are 0 or more, and finite.")
