"""Random numbers by position: each position of an order has its own, whichever positions are requested."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.keys import mix, mix_array

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def draw_below(bound: int, places: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    """Return a number from 0 to `bound` - 1 for each position, all equally likely; `bound` is at most 2**63.

    The number is the high half of a 128-bit product of 64 random bits and the bound (Lemire's method). A few low halves
    are rejected and drawn again, which makes it exact.
    """
    high, low = _product(mix_array(key, places), bound)
    refused = np.uint64((1 << 64) % bound)
    again = np.flatnonzero(low < refused)
    attempt = 0
    while len(again):
        attempt += 1
        high[again], low = _product(mix_array(mix(key, attempt), places[again]), bound)
        again = again[low < refused]
    return high.view(np.int64)


def draw_exponential(places: NDArray[np.int64], key: int) -> NDArray[np.float64]:
    """Return a number above 0 for each position, exponentially distributed with mean 1.

    Small numbers have the full precision of a float: they decide in draws without replacement.
    """
    fraction = mix_array(key, places).astype(np.float64)
    fraction += 0.5
    fraction *= 2.0**-64
    # Rounding 64 bits to 53 may have made it 1, which leads to the logarithm of 0.
    np.minimum(fraction, 1 - 2.0**-53, out=fraction)
    np.negative(fraction, out=fraction)
    np.log1p(fraction, out=fraction)
    return np.negative(fraction, out=fraction)


def _product(bits: NDArray[np.uint64], bound: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return high and low half of the 128-bit products `bits` * `bound`."""
    bound_low, bound_high = np.uint64(bound & 0xFFFFFFFF), np.uint64(bound >> 32)
    bits_low, bits_high = bits & _LOW, bits >> _HALF
    middle = bits_low * bound_low
    middle >>= _HALF
    middle += bits_high * bound_low  # below 2**64 - 2**32; the next summand would overflow
    high = middle >> _HALF
    if bound_high:
        middle &= _LOW
        middle += bits_low * bound_high
        middle >>= _HALF
        high += middle
        high += bits_high * bound_high
    return high, bits * np.uint64(bound & 0xFFFFFFFFFFFFFFFF)


_SUM_BITS = 62
"""The integer weights sum to 2 to this power, so that no sum overflows."""


class WeightTable:
    """Draws the number i with a probability in proportion to `weights[i]`.

    Weights become integers, and a draw is one number below their sum: it lies in the range of one of them.

    Args:
        weights: At least one, finite, none negative, not all zero. They are rounded to multiples of 2**-62 of their
            sum; a weight of zero stays zero.

    Example:
        >>> WeightTable(np.array([0.0, 3.0, 0.0])).draw(np.arange(4), key=1).tolist()
        [1, 1, 1, 1]
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self._ends = np.cumsum(integers(weights, 1 << _SUM_BITS))

    def draw(self, places: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Return the number drawn at each position."""
        drawn = draw_below(1 << _SUM_BITS, places, key)
        found, order = np.empty(len(drawn), np.int64), np.argsort(drawn)
        # In ascending order, which takes a quarter of the time: neighbours are in the cache.
        found[order] = np.searchsorted(self._ends, drawn[order], side="right")
        return found


def integers(weights: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Return integers in proportion to the weights, as far as rounding allows, that sum to `total` exactly."""
    scaled = weights / weights.max()  # the sum of large weights may be infinite
    scaled *= total / scaled.sum()
    rounded: NDArray[np.int64] = np.rint(scaled, out=scaled).astype(np.int64)
    # The largest weights take the rounding error, where it matters least.
    large = np.flatnonzero(rounded >= rounded.max() // 2)
    share, rest = divmod(total - int(rounded.sum()), len(large))
    rounded[large] += share
    rounded[large[:rest]] += 1
    return rounded
