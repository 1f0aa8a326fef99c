"""A keyed permutation of the numbers below n, without a table: position p maps to index f(p), each index once.

A Feistel network encrypts the position, written as a pair (high, low) with high below m and low below 2**r, where
m * 2**r is n or slightly more. Each round changes one half by a keyed hash of the other (added modulo m, or xored): a
bijection of the pairs for any hash. The few pairs beyond n are encrypted again until they fall below it (cycle
walking). All arithmetic uses 32-bit integers, which processors handle several at a time, in pieces that stay in the
cache.

With `indices_at`, every element may belong to an order of its own size and key, such as that of its class. A single
order of up to 1,024 numbers is a table instead, made by sorting a hash of each number. It takes 8 KB at most and a
fortieth of the time, and all orders are equally likely as far as 64 bits of key allow.
"""

from __future__ import annotations

import math
import operator

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.keys import mix, mix_array

LARGEST = 1 << 63
"""The largest size."""

SMALL = 1 << 10
"""Up to this size a `Bijection` is a sorted table."""
_ROUNDS = 8
"""An even number: twice the four rounds after which a network with random functions looks random.
Test: tests/randomness/test_bijection.py"""
_ROUNDS_OF_SMALL = 16
"""For sizes up to `SMALL`: few bits take longer to mix. All orders of a few numbers are equally likely then."""

_PIECE = 1 << 13
"""Elements encrypted at a time: their arrays stay in the cache."""

Words = NDArray[np.uint32]
Numbers = NDArray[np.uint64]


class Bijection:
    """An order of the numbers 0 to `size` - 1 that is determined by `key` and can be entered at any position.

    Args:
        size: How many numbers, up to 2**63.
        key: 64 bits. Two keys give unrelated orders.

    Example:
        >>> order = Bijection(10**9, key=7)
        >>> order(np.arange(3)).tolist() == [int(order(np.array([place]))[0]) for place in range(3)]
        True
        >>> sorted(Bijection(5, key=7)(np.arange(5)).tolist())
        [0, 1, 2, 3, 4]
    """

    def __init__(self, size: int, key: int) -> None:
        size = operator.index(size)
        if not 0 <= size <= LARGEST:
            raise ValueError(f"size={size} is not between 0 and 2**63: indices are 64-bit integers.")
        self.size = size
        self.key = key
        keys = np.array([key & _MASK], np.uint64)
        self._table = small_orders(size, keys)[0] if size <= SMALL else None
        self._network = None if size <= SMALL else _Network(np.array(size, np.uint64), keys[0], _ROUNDS)

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices at these positions, which may be in any order and repeat.

        Raises:
            IndexError: a position is not between 0 and `size` - 1.
        """
        places = np.asarray(places, dtype=np.int64)
        if places.size == 0:
            return np.empty(places.shape, np.int64)
        first, last = int(places.min()), int(places.max())
        if first < 0 or last >= self.size:
            wrong = first if first < 0 else last
            raise IndexError(f"place {wrong} is not in an order of {self.size} places, 0 to {self.size - 1}.")
        if self._network is None:
            assert self._table is not None
            found: NDArray[np.int64] = self._table[places]
            return found
        flat = places.reshape(-1).view(np.uint64)
        out = np.empty(len(flat), np.uint64)
        for start in range(0, len(flat), _PIECE):
            out[start : start + _PIECE] = self._network.indices_at(flat[start : start + _PIECE])
        return out.view(np.int64).reshape(places.shape)

    def __repr__(self) -> str:
        return f"Bijection({self.size}, key={self.key})"


def small_orders(size: int, keys: Numbers) -> NDArray[np.int64]:
    """Return the orders of a small size under many keys at once, one per row, as `Bijection` would give them.

    Example:
        >>> bool((small_orders(5, np.array([7], np.uint64))[0] == Bijection(5, key=7)(np.arange(5))).all())
        True
    """
    numbers = mix_array(0, np.arange(size, dtype=np.int64))
    hashed = mix_array(1, (keys[:, None] + numbers[None, :]).view(np.int64))
    return np.argsort(hashed, axis=1, kind="stable")


def indices_at(places: NDArray[np.int64], sizes: NDArray[np.int64], keys: Numbers) -> NDArray[np.int64]:
    """Return, for each element, the index at its position in the order of 0 to size - 1 that its key determines.

    Args:
        places: the positions, from 0 to size - 1 of the same element.
        sizes: at least 1.
        keys: elements with the same size and key belong to the same order.

    Example:
        >>> places, sizes = np.array([0, 1, 2, 0]), np.array([3, 3, 3, 1])
        >>> sorted(indices_at(places, sizes, np.array([7, 7, 7, 8], np.uint64)).tolist())
        [0, 0, 1, 2]
    """
    out = np.empty(len(places), np.int64)
    for start in range(0, len(places), _PIECE):
        piece = slice(start, start + _PIECE)
        network = _Network(sizes[piece].astype(np.uint64), keys[piece], _ROUNDS_OF_SMALL)
        out[piece] = network.indices_at(places[piece].astype(np.uint64))
    return out


def index_at(place: int, size: int, key: int) -> int:
    """Return the result of `indices_at` for one element, for which NumPy would take a hundred times as long.

    Example:
        >>> index_at(5, 10, 7) == int(indices_at(np.array([5]), np.array([10]), np.array([7], np.uint64))[0])
        True
    """
    low_bits = max(1, (math.frexp(size - 1)[1] + 1) // 2)
    high_size = (size - 1 >> low_bits) + 1
    zeros = max(0, high_size.bit_length() - 16)
    factor = (high_size - 1 >> zeros) + 1
    high_size = factor << zeros
    low_mask, to_low = (1 << low_bits) - 1, 32 - low_bits
    key, more_key = key & _WORD, key >> 32 & _WORD | 1
    while True:
        high, low = place >> low_bits, place & low_mask
        for even, odd in _NUMBERS:
            x = (low ^ key + even & _WORD) * _SPREAD & _WORD
            x = (x ^ x >> 16) * more_key & _WORD
            high += (x * factor >> 16) >> 16 - zeros
            if high >= high_size:
                high -= high_size
            x = (high ^ key + odd & _WORD) * _SPREAD & _WORD
            low ^= ((x ^ x >> 16) * more_key & _WORD) >> to_low
        place = high << low_bits | low
        if place < size:
            return place


class _Network:
    """The networks of some elements, or one for all: bijections of at most twice as many pairs as numbers."""

    def __init__(self, sizes: Numbers, keys: Numbers, rounds: int) -> None:
        self._rounds = rounds
        bits = np.frexp((sizes - _ONE).astype(np.float64))[1]
        low_bits = np.maximum((bits + 1) // 2, 1)
        high_sizes = (sizes - _ONE >> low_bits.astype(np.uint64)) + _ONE
        # A hash becomes a number below high_size as hash * high_size >> 32, computed from 16 bits at a time. That needs
        # a factor of 16 bits: the last bits of a longer one are set to zero (rounding up), and shifted in afterwards.
        zeros = np.maximum(np.frexp(high_sizes.astype(np.float64))[1] - 16, 0)
        factors = (high_sizes - _ONE >> zeros.astype(np.uint64)) + _ONE
        self._sizes = sizes
        self._low_bits = low_bits.astype(np.uint64)
        self._low_masks = (_ONE << self._low_bits) - _ONE
        self._high_sizes = (factors << zeros.astype(np.uint64)).astype(np.uint32)
        self._factors = factors.astype(np.uint32)
        self._to_high = (16 - zeros).astype(np.uint32)
        self._to_low = (32 - low_bits).astype(np.uint32)
        self._whole_keys = keys
        self._keys = np.asarray(keys.astype(np.uint32))  # not a scalar, whose sums warn of an overflow
        self._more_keys = (keys >> np.uint64(32)).astype(np.uint32) | np.uint32(1)

    def _of(self, where: NDArray[np.int64]) -> _Network:
        """Return the networks of some of the elements."""
        return _Network(self._sizes[where], self._whole_keys[where], self._rounds) if self._sizes.ndim else self

    def indices_at(self, places: Numbers) -> Numbers:
        numbers = self._encrypted(places)
        where = np.flatnonzero(numbers >= self._sizes)
        while len(where):  # it ends: the cycle of a position contains the position itself
            part = self._of(where)
            again = numbers[where] = part._encrypted(numbers[where])
            where = where[again >= part._sizes]
        return numbers

    def _encrypted(self, numbers: Numbers) -> Numbers:
        low = (numbers & self._low_masks).astype(np.uint32)
        high = (numbers >> self._low_bits).astype(np.uint32)
        hashed, spare = np.empty_like(low), np.empty_like(low)
        for even, odd in _NUMBERS_OF_ROUNDS[: self._rounds // 2]:
            self._hash(low, even, hashed, spare)
            np.bitwise_and(hashed, _LOW16, out=spare)
            np.multiply(spare, self._factors, out=spare)
            np.right_shift(spare, _SIXTEEN, out=spare)
            np.right_shift(hashed, _SIXTEEN, out=hashed)
            np.multiply(hashed, self._factors, out=hashed)
            np.add(hashed, spare, out=hashed)
            np.right_shift(hashed, self._to_high, out=hashed)
            np.add(high, hashed, out=high)
            # Modulo without a division: a negative result wraps around to a large number.
            np.subtract(high, self._high_sizes, out=spare)
            np.minimum(high, spare, out=high)
            self._hash(high, odd, hashed, spare)
            np.right_shift(hashed, self._to_low, out=hashed)
            np.bitwise_xor(low, hashed, out=low)
        joined: Numbers = high.astype(np.uint64)
        joined <<= self._low_bits
        joined |= low
        return joined

    def _hash(self, source: Words, number: Words, out: Words, spare: Words) -> None:
        """Write 32 keyed bits for each half into `out`; the high bits are the best mixed. `index_at` does the same."""
        np.bitwise_xor(source, self._keys + number, out=out)
        np.multiply(out, _SPREAD_WORD, out=out)
        np.right_shift(out, _SIXTEEN, out=spare)
        np.bitwise_xor(out, spare, out=out)
        np.multiply(out, self._more_keys, out=out)


_MASK = (1 << 64) - 1
_WORD = 0xFFFFFFFF
_SPREAD = 0x9E3779B1
_NUMBERS = [tuple(mix(0, each) & _WORD for each in (number, number + 1)) for number in range(0, _ROUNDS_OF_SMALL, 2)]
"""Added to the key in each round, so that no two rounds have the same hash."""

# Arrays without dimensions, which NumPy handles a third faster than scalars.
_NUMBERS_OF_ROUNDS = [(np.array(even, np.uint32), np.array(odd, np.uint32)) for even, odd in _NUMBERS]
_ONE = np.array(1, np.uint64)
_LOW16 = np.array(0xFFFF, np.uint32)
_SIXTEEN = np.array(16, np.uint32)
_SPREAD_WORD = np.array(_SPREAD, np.uint32)
