"""Random numbers by position: each position of an order has its own, whichever positions are requested."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.keys import mix_array


def draw_below(bound: int, places: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    """Return a number from 0 to `bound` - 1 for each position; `bound` is at most 2**63.

    Their chances differ by less than `bound` / 2**64.
    """
    return (mix_array(key, places) % np.uint64(bound)).view(np.int64)


def draw_fraction(places: NDArray[np.int64], key: int) -> NDArray[np.float64]:
    """Return a number between 0 and 1 for each position, neither of which is drawn.

    Small numbers have the full precision of a float: they decide in draws without replacement.
    """
    fraction = mix_array(key, places).astype(np.float64)
    fraction += 0.5
    fraction *= 2.0**-64
    # Rounding 64 bits to 53 may have made it 1.
    return np.minimum(fraction, 1 - 2.0**-53, out=fraction)


class WeightTable:
    """Draws the number i with a probability in proportion to `weights[i]`.

    Args:
        weights: At least one, finite, none negative, not all zero.

    Example:
        >>> WeightTable(np.array([0.0, 3.0, 0.0])).draw(np.arange(4), key=1).tolist()
        [1, 1, 1, 1]
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self._ends = np.cumsum(weights / weights.max())  # the sum of large weights may be infinite

    def draw(self, places: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Return the number drawn at each position."""
        total = self._ends[-1]
        drawn = np.minimum(draw_fraction(places, key) * total, np.nextafter(total, 0))
        found, order = np.empty(len(drawn), np.int64), np.argsort(drawn)
        # In ascending order, which takes a quarter of the time: neighbours are in the cache.
        found[order] = np.searchsorted(self._ends, drawn[order], side="right")
        return found
