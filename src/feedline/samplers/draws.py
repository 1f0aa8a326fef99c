"""Random numbers by number: each place of an order has its own, whichever places are asked for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.keys import mix, mix_array

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def draw_below(bound: int, places: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    """Return for each place a number from 0 to `bound` - 1, all of them equally likely; `bound` is at most 2**63.

    The number is the high half of a 128-bit product of 64 random bits and the bound (Lemire's method). A few low halves
    are refused and drawn again, which makes it exact.

    Example:
        >>> draw_below(3, np.arange(6), key=1).tolist() == draw_below(3, np.arange(6)[::-1], key=1)[::-1].tolist()
        True
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
    """Return for each place a number above 0, exponentially distributed with mean 1.

    Small ones have all the digits of a float: they decide in draws without replacement.
    """
    fraction = mix_array(key, places).astype(np.float64)
    fraction += 0.5
    fraction *= 2.0**-64
    # 64 bits rounded to 53 may have become 1, of which there is no logarithm.
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
