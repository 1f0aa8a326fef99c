"""Passes: going through datasets again and again, each time in another order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.bijection import Bijection
from feedline.randomness.keys import mix, mix_array
from feedline.randomness.orders import LARGEST, index_at, indices_at

_SHIFT = 40
"""A pass of a dataset is one number: that of the dataset above that of the pass. Nobody makes 2**40 passes."""


class Passes:
    """Endless orders of the samples of several datasets: none comes twice before all of its dataset came once.

    Args:
        sizes: how many samples each dataset has.
        key: decides about the orders.

    Example:
        >>> passes = Passes([3, 5], key=7)
        >>> order = [passes.one(0, turn) for turn in range(6)]
        >>> sorted(order[:3]), sorted(order[3:])
        ([0, 1, 2], [0, 1, 2])
        >>> passes.at(np.zeros(6, np.int64), np.arange(6)).tolist() == order
        True
    """

    def __init__(self, sizes: Sequence[int], key: int) -> None:
        self._sizes = list(sizes)
        self._size_array = np.array(self._sizes, np.int64)
        self._key = key
        self._has_large = any(size > LARGEST for size in sizes)

    def at(self, numbers: NDArray[np.int64], turns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices that the datasets of these numbers give at these turns."""
        if self._has_large:
            pairs = zip(numbers.tolist(), turns.tolist(), strict=True)
            return np.array([self.one(number, turn) for number, turn in pairs], np.int64)
        sizes = self._size_array[numbers]
        passes, places = np.divmod(turns, sizes)
        return indices_at(places, sizes, mix_array(self._key, (numbers << _SHIFT) + passes))

    def one(self, number: int, turn: int) -> int:
        """Return what `at` returns for one dataset and turn."""
        size = self._sizes[number]
        number_of_pass, place = divmod(turn, size)
        key = mix(self._key, (number << _SHIFT) + number_of_pass)
        if size > LARGEST:
            return int(Bijection(size, key)(np.array([place]))[0])
        return index_at(place, size, key)
