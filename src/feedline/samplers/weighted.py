"""Indices by weight, or with every class equally often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.randomness.keys import epoch_key
from feedline.samplers.draws import WeightTable, draw_fraction
from feedline.samplers.labels import classes_of, refuse_dataset
from feedline.samplers.seeded import Seeded
from feedline.samplers.torch_bases import with_torch_base
from feedline.system.optional import is_tensor
from feedline.system.options import checked_count
from feedline.types import Key, State


@with_torch_base("WeightedRandomSampler")
class WeightedRandomSampler(Seeded):
    """Draws indices with probabilities in proportion to any number of weights.

    With replacement, the order needs no memory besides a table of 8 bytes per weight.
    Without replacement, the order of an epoch is made as a whole: each draw is in proportion to the remaining weights.

    Args:
        weights: One for each index, not negative; they need not sum to one. An index with weight zero is never drawn.
        num_samples: Indices in an epoch.
        replacement: Draw each index independently of those before it.
        generator: torch or NumPy generator to draw the seed of each epoch from; torch's default generator if None.
        seed: Fixes the orders of all epochs instead.

    Example:
        >>> list(WeightedRandomSampler([0.0, 1.0], 3))
        [1, 1, 1]
        >>> sorted(WeightedRandomSampler([0.0, 0.1, 7.0], 2, replacement=False))
        [1, 2]
    """

    def __init__(
        self,
        weights: Sequence[float] | object,
        num_samples: int,
        replacement: bool = True,
        generator: object = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(seed, generator)
        if not isinstance(replacement, bool):
            raise BadOption(f"replacement={replacement!r} is not a boolean.")
        self.weights = weights
        self.num_samples = checked_count("num_samples", num_samples)
        self.replacement = replacement
        self._array = _checked(weights)
        if replacement:
            self._table = WeightTable(self._array)
            return
        self._positive = np.flatnonzero(self._array)
        if num_samples > len(self._positive):
            raise BadOption(
                f"num_samples={num_samples} indices cannot be drawn without replacement: only {len(self._positive)} of "
                f"{len(self._array)} weights are above zero. Draw fewer, or draw with replacement."
            )
        self._last: tuple[Key, IndexArray] | None = None

    def size(self) -> int:
        return self.num_samples

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        if self.replacement:
            return self._table.draw(places, epoch_key(key.seed, key.epoch))
        # The order is kept until another epoch is requested. The attribute is read once: other threads may replace it.
        last = self._last
        if last is None or last[0] != key:
            last = self._last = (key, self._successive(epoch_key(key.seed, key.epoch)))
        return last[1][places]

    def _successive(self, key: int) -> IndexArray:
        """Draw all indices of an epoch, each in proportion to the remaining weights.

        Imagine a clock for each index that rings after a random time, sooner for heavier ones. Clocks have no memory,
        so the order in which they ring is that of successive draws.
        """
        # The logarithm of the time, because the quotient of extreme weights exceeds the range of a float.
        times = np.log(-np.log1p(-draw_fraction(self._positive, key)))
        times -= np.log(self._array[self._positive])
        first = np.arange(len(times))
        if self.num_samples < len(times):
            first = np.argpartition(times, self.num_samples - 1)[: self.num_samples]
        return self._positive[first[np.argsort(times[first], kind="stable")]]

    def describe(self) -> State:
        checksum = crc32(self._array.data)
        return {**super().describe(), "replacement": self.replacement, "checksum": checksum}

    def __repr__(self) -> str:
        drawn = "" if self.replacement else ", replacement=False"
        return f"WeightedRandomSampler({len(self._array)} weights, {self.num_samples}{drawn}{self._origin()})"


def _checked(weights: object) -> NDArray[np.float64]:
    refuse_dataset("weights", weights, "[1.0] * len(dataset)")
    if is_tensor(weights):
        weights = weights.detach().cpu().numpy()
    array = np.ascontiguousarray(np.asarray(weights, dtype=np.float64))
    if array.ndim != 1:
        raise BadOption(f"weights is not a list of numbers but has shape {array.shape}.")
    if len(array) == 0:
        raise BadOption("weights is empty: there is nothing to draw from.")
    if not (array.min() >= 0 and array.max() < np.inf):  # also for NaN, which min and max return if there is one
        wrong = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
        place = int(wrong[0])
        others = f" (nor are {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise BadOption(
            f"weights[{place}]={array[place]} is not a finite number of at least 0{others}. "
            "A weight is the relative probability of an index."
        )
    if not array.any():
        raise BadOption(f"All {len(array)} weights are zero: nothing can be drawn.")
    return array


class BalancedSampler(WeightedRandomSampler):
    """Draws indices with replacement such that every class is equally likely, however many samples it has.

    Args:
        labels: The class of each sample: integers or strings, as a list, array or tensor.
        num_samples: Indices in an epoch; as many as labels by default.
        seed: Fixes the orders of all epochs.
        generator: torch or NumPy generator to draw the seed of each epoch from instead.

    Example:
        >>> sampler = BalancedSampler(["cat"] * 999 + ["dog"], 1000, seed=1)
        >>> 400 < sum(index == 999 for index in sampler) < 600
        True
    """

    # Any: an array or tensor has no common type with a list.
    def __init__(
        self,
        labels: Sequence[int] | Sequence[str] | Any,
        num_samples: int | None = None,
        *,
        seed: int | None = None,
        generator: object = None,
    ) -> None:
        self.labels = labels
        numbers, names = classes_of(labels)
        if len(numbers) == 0:
            raise BadOption("labels is empty: there is nothing to draw from.")
        self.class_count = len(names)
        weights = (1.0 / np.bincount(numbers))[numbers]
        super().__init__(weights, len(numbers) if num_samples is None else num_samples, seed=seed, generator=generator)

    def describe(self) -> State:
        return {**super().describe(), "classes": self.class_count}

    def __repr__(self) -> str:
        return (
            f"BalancedSampler({len(self.labels)} labels of {self.class_count} classes, {self.num_samples}"
            f"{self._origin()})"
        )
