"""Random numbers by position: each position of an order has its own, whichever positions are requested.

Also an alias table: exact draws from any number of weights in constant time.

Weights become integers q_i that sum to n * U, U a power of two. Imagine n columns of height U. Column i holds i up to
its threshold, and its alias above. Then a draw is one random number below n * U: the column, and how high in it.

The table is built in one sweep over light columns (q_i < U) and heavy ones (q_j > U): the current heavy column fills up
light ones until less than U is left of it, and is then filled up itself by the next heavy one. The state of the sweep
follows from sums: with D the deficits of the light columns added up, and S the surpluses of the heavy ones,
the i-th light column is filled by the first heavy one whose S exceeds D before i, and the j-th heavy one
is left when D first reaches S_j. So there is no loop over the weights.

All of this is integer arithmetic, and the table is exact:
threshold_i + the sum of U - threshold_j over all j whose alias is i = q_i.
"""

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
"""The integer weights sum to less than 2 to this power, so that no sum overflows."""


class AliasTable:
    """Draws the number i with a probability in proportion to `weights[i]`.

    Args:
        weights: At least one, finite, none negative, not all zero. They are rounded to multiples of 2**-61 of their sum
            or finer; a weight of zero stays zero.

    Example:
        >>> AliasTable(np.array([0.0, 3.0, 0.0])).draw(np.arange(4), key=1).tolist()
        [1, 1, 1, 1]
    """

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self.height_bits = _SUM_BITS - len(weights).bit_length()
        self.threshold, self.alias = _sweep(integers(weights, len(weights) << self.height_bits), 1 << self.height_bits)

    def draw(self, places: NDArray[np.int64], key: int) -> NDArray[np.int64]:
        """Return the number drawn at each position."""
        drawn = draw_below(len(self.threshold) << self.height_bits, places, key)
        column: NDArray[np.int64] = drawn >> self.height_bits
        drawn &= (1 << self.height_bits) - 1
        aliased = np.flatnonzero(drawn >= self.threshold[column])
        column[aliased] = self.alias[column[aliased]]
        return column

    def __repr__(self) -> str:
        return f"AliasTable({len(self.threshold)} weights)"


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


def _sweep(weights: NDArray[np.int64], height: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    threshold = np.full(len(weights), height, np.int64)
    alias = np.arange(len(weights), dtype=np.int64)
    light = np.flatnonzero(weights < height)
    heavy = np.flatnonzero(weights > height)
    if len(light) == 0:
        return threshold, alias
    threshold[light] = weights[light]
    deficits = np.cumsum(height - weights[light])
    surpluses = np.cumsum(weights[heavy] - height)
    before = np.concatenate([[0], deficits[:-1]])
    alias[light] = heavy[np.searchsorted(surpluses, before, side="right")]
    left_at = np.searchsorted(deficits, surpluses, side="left")
    threshold[heavy] = height + surpluses - deficits[left_at]
    alias[heavy[:-1]] = heavy[1:]
    return threshold, alias
