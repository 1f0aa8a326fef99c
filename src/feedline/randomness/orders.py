"""Many keyed orders at once: each element is permuted within an order of its own size and key.

A Feistel network as in `feedline.randomness.bijection`, for batches in which hardly any two samples belong to the same
order: the classes of a dataset, the passes through a small dataset. It also permutes single numbers, with Python
integers, where NumPy would take a hundred times as long as for one of many.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LARGEST = 1 << 32
"""The largest size. Larger orders are rare: use a `Bijection` for each."""

_ROUNDS = 16
"""Twice those of `feedline.randomness.bijection`, which does not encrypt small sizes: few bits take longer to mix.
Test: tests/randomness/test_orders.py"""

_PIECE = 1 << 13
"""Elements at a time: seven arrays of 32 KB stay in the cache."""

Words = NDArray[np.uint32]


def indices_at(places: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return, for each element, the index at its position in the order of 0 to size - 1 that its key determines.

    Args:
        places: the positions, from 0 to size - 1 of the same element.
        sizes: from 1 to `LARGEST`.
        keys: elements with the same size and key belong to the same order.

    Example:
        >>> places, sizes = np.array([0, 1, 2, 0]), np.array([3, 3, 3, 1])
        >>> sorted(indices_at(places, sizes, np.array([7, 7, 7, 8], np.uint64)).tolist())
        [0, 0, 1, 2]
    """
    out = np.empty(len(places), np.int64)
    for start in range(0, len(places), _PIECE):
        piece = slice(start, start + _PIECE)
        out[piece] = _piece_at(places[piece], sizes[piece], keys[piece])
    return out


def index_at(place: int, size: int, key: int) -> int:
    """Return the result of `indices_at` for one element.

    Example:
        >>> index_at(5, 10, 7) == int(indices_at(np.array([5]), np.array([10]), np.array([7], np.uint64))[0])
        True
    """
    low_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    high_size = -(-size >> low_bits)
    low_mask = (1 << low_bits) - 1
    to_low = 32 - low_bits
    key, more_key = key & _WORD, key >> 32 & _WORD
    while True:
        high, low = place >> low_bits, place & low_mask
        for even, odd in _NUMBERS:
            x = ((low + even & _WORD) ^ key) * _FIRST & _WORD
            x = ((x ^ x >> 16) + more_key) * _SECOND & _WORD
            x = (x ^ x >> 13) * _FIRST & _WORD
            high += (x >> 16) * high_size >> 16
            if high >= high_size:
                high -= high_size
            x = ((high + odd & _WORD) ^ key) * _FIRST & _WORD
            x = ((x ^ x >> 16) + more_key) * _SECOND & _WORD
            low ^= ((x ^ x >> 13) * _FIRST & _WORD) >> to_low
        place = high << low_bits | low
        if place < size:
            return place


def _piece_at(places: NDArray[np.int64], sizes: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    # A number is a pair (high, low). Low has half of the bits, but at least one; high has the smallest range that
    # covers the size. So there are at most twice as many pairs as numbers.
    bits = np.frexp((sizes - 1).astype(np.float64))[1].astype(np.int64)
    low_bits = np.maximum((bits + 1) // 2, 1)
    high_sizes = (sizes + (1 << low_bits) - 1) >> low_bits
    halves = keys.astype(np.uint32), (keys >> np.uint64(32)).astype(np.uint32)
    network = (low_bits.astype(np.uint32), high_sizes.astype(np.uint32), *halves)
    numbers = _encrypted(places, *network)
    where = np.flatnonzero(numbers >= sizes)
    while len(where):  # it ends: the cycle of a position contains the position itself
        again = _encrypted(numbers[where], *(part[where] for part in network))
        numbers[where] = again
        where = where[again >= sizes[where]]
    return numbers


def _encrypted(
    numbers: NDArray[np.int64], low_bits: Words, high_sizes: Words, keys: Words, more_keys: Words
) -> NDArray[np.int64]:
    high = (numbers >> low_bits).astype(np.uint32)
    low = numbers.astype(np.uint32)
    low &= (_ONE << low_bits) - _ONE
    to_low = _BITS - low_bits
    hashed, spare = np.empty_like(low), np.empty_like(low)
    for even, odd in _NUMBERS:
        _hash(low, even, keys, more_keys, hashed, spare)
        np.right_shift(hashed, _HALF, out=hashed)
        np.multiply(hashed, high_sizes, out=hashed)
        np.right_shift(hashed, _HALF, out=hashed)
        np.add(high, hashed, out=high)
        # Modulo without a division: a negative result wraps around to a large number.
        np.subtract(high, high_sizes, out=spare)
        np.minimum(high, spare, out=high)
        _hash(high, odd, keys, more_keys, hashed, spare)
        np.right_shift(hashed, to_low, out=hashed)
        np.bitwise_xor(low, hashed, out=low)
    joined = high.astype(np.int64)
    joined <<= low_bits
    joined |= low
    return joined


def _hash(source: Words, number: int, keys: Words, more_keys: Words, out: Words, spare: Words) -> None:
    """Write 32 keyed bits for each half into `out`; the high bits are the best mixed. `index_at` does the same."""
    np.add(source, np.array(number, np.uint32), out=out)
    np.bitwise_xor(out, keys, out=out)
    np.multiply(out, _FIRST_WORD, out=out)
    np.right_shift(out, _HALF, out=spare)
    np.bitwise_xor(out, spare, out=out)
    np.add(out, more_keys, out=out)
    np.multiply(out, _SECOND_WORD, out=out)
    np.right_shift(out, _THIRTEEN, out=spare)
    np.bitwise_xor(out, spare, out=out)
    np.multiply(out, _FIRST_WORD, out=out)


_WORD = 0xFFFFFFFF
_FIRST = 0x85EBCA6B
_SECOND = 0xC2B2AE35
_NUMBERS = [(number * 0x9E3779B9 & _WORD, (number + 1) * 0x9E3779B9 & _WORD) for number in range(0, _ROUNDS, 2)]
"""Added in each round, so that no two rounds have the same hash."""

# Arrays without dimensions, which NumPy handles a third faster than scalars.
_ONE = np.array(1, np.uint32)
_BITS = np.array(32, np.uint32)
_HALF = np.array(16, np.uint32)
_THIRTEEN = np.array(13, np.uint32)
_FIRST_WORD = np.array(_FIRST, np.uint32)
_SECOND_WORD = np.array(_SECOND, np.uint32)
