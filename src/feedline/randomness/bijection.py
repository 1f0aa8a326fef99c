"""A keyed permutation of the numbers below n, without a table: position p maps to index f(p), each index once.

A Feistel network encrypts the position, written as a pair (high, low) with high below m and low below 2**r, where
m * 2**r is n or slightly more. Each round changes one half by a keyed hash of the other (added modulo m, or xored): a
bijection of the pairs for any hash. The few pairs beyond n are encrypted again until they fall below it (cycle
walking). All arithmetic uses 32-bit integers, which processors handle several at a time, in pieces that stay in the
cache.

Up to 1,024 numbers are ordered by sorting a hash of each. That takes 8 KB at most, and all orders are equally likely as
far as 64 bits of key allow, which a Feistel network on so few bits cannot provide.
"""

from __future__ import annotations

import operator

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.keys import mix, mix_array

_PIECE = 1 << 14
"""Positions encrypted at a time: five arrays of 64 KB."""
SMALL = 1 << 10
"""Up to this size an order is a sorted table."""
_ROUNDS = 8
"""Twice the four rounds after which a network with random functions looks random.
Test: tests/randomness/test_bijection.py"""
_LARGEST = 1 << 63


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
        if not 0 <= size <= _LARGEST:
            raise ValueError(f"size={size} is not between 0 and 2**63: indices are 64-bit integers.")
        self.size = size
        self.key = key
        self._table: NDArray[np.int64] | None = None
        if size <= SMALL:
            self._table = small_orders(size, np.array([key & _MASK], np.uint64))[0]
        else:
            self._network = _Network(size, key)

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
        if self._table is not None:
            return self._table[places]
        flat = places.reshape(-1).view(np.uint64)
        out = np.empty(len(flat), np.uint64)
        for start in range(0, len(flat), _PIECE):
            out[start : start + _PIECE] = self._network.encrypted(flat[start : start + _PIECE])
        self._walk(out)
        return out.view(np.int64).reshape(places.shape)

    def _walk(self, numbers: NDArray[np.uint64]) -> None:
        """Encrypt numbers that are too large again, in place. It ends: each is on a cycle with a place below `size`."""
        limit = np.uint64(self.size)
        where = np.flatnonzero(numbers >= limit)
        while len(where):
            again = self._network.encrypted(numbers[where])
            numbers[where] = again
            where = where[again >= limit]

    def __repr__(self) -> str:
        return f"Bijection({self.size}, key={self.key})"


def small_orders(size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return the orders of a small size under many keys at once, one per row, as `Bijection` would give them.

    Example:
        >>> bool((small_orders(5, np.array([7], np.uint64))[0] == Bijection(5, key=7)(np.arange(5))).all())
        True
    """
    numbers = mix_array(0, np.arange(size, dtype=np.int64))
    hashed = mix_array(1, (keys[:, None] + numbers[None, :]).view(np.int64))
    return np.argsort(hashed, axis=1, kind="stable")


class _Network:
    """The Feistel network of a `Bijection`: a bijection of slightly more numbers than requested."""

    def __init__(self, size: int, key: int) -> None:
        bits = (size - 1).bit_length()
        low_bits = bits - bits // 2
        high_size = -(-size >> low_bits)
        # A hash becomes a number below high_size as hash * high_size >> 32, computed from 16 bits at a time. That needs
        # a factor of 16 bits: the last bits of a longer one are set to zero (rounding up), and shifted in afterwards.
        zeros = max(0, high_size.bit_length() - 16)
        factor = -(-high_size >> zeros)
        # Constants are arrays without dimensions, which NumPy handles a third faster than scalars.
        self._low_bits = np.array(low_bits, np.uint64)
        self._low_mask = np.array((1 << low_bits) - 1, np.uint64)
        self._high_size = np.array(factor << zeros, np.uint32)
        self._factor = np.array(factor, np.uint32)
        self._to_high = np.array(16 - zeros, np.uint32)
        self._to_low = np.array(32 - low_bits, np.uint32)
        words = [mix(key, number) for number in range(_ROUNDS)]
        self._keys = [(np.array(w & _WORD, np.uint32), np.array(w >> 32 | 1, np.uint32)) for w in words]

    def encrypted(self, numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
        low = (numbers & self._low_mask).astype(np.uint32)
        high = (numbers >> self._low_bits).astype(np.uint32)
        hashed, spare = np.empty_like(low), np.empty_like(low)
        for even, odd in zip(self._keys[::2], self._keys[1::2], strict=True):
            _hash(low, even, hashed, spare)
            np.bitwise_and(hashed, _LOW16, out=spare)
            np.multiply(spare, self._factor, out=spare)
            np.right_shift(spare, _SIXTEEN, out=spare)
            np.right_shift(hashed, _SIXTEEN, out=hashed)
            np.multiply(hashed, self._factor, out=hashed)
            np.add(hashed, spare, out=hashed)
            np.right_shift(hashed, self._to_high, out=hashed)
            np.add(high, hashed, out=high)
            # Modulo without a division: a negative result wraps around to a large number.
            np.subtract(high, self._high_size, out=spare)
            np.minimum(high, spare, out=high)
            _hash(high, odd, hashed, spare)
            np.right_shift(hashed, self._to_low, out=hashed)
            np.bitwise_xor(low, hashed, out=low)
        joined = high.astype(np.uint64)
        joined <<= self._low_bits
        joined |= low
        return joined


_MASK = (1 << 64) - 1
_WORD = 0xFFFFFFFF
_LOW16 = np.array(0xFFFF, np.uint32)
_SIXTEEN = np.array(16, np.uint32)
_SPREAD = np.array(0x9E3779B1, np.uint32)


def _hash(
    source: NDArray[np.uint32],
    key: tuple[NDArray[np.uint32], NDArray[np.uint32]],
    out: NDArray[np.uint32],
    spare: NDArray[np.uint32],
) -> None:
    """Write 32 keyed bits for each number into `out`; the high bits are the best mixed."""
    np.bitwise_xor(source, key[0], out=out)
    np.multiply(out, _SPREAD, out=out)
    np.right_shift(out, _SIXTEEN, out=spare)
    np.bitwise_xor(out, spare, out=out)
    np.multiply(out, key[1], out=out)
