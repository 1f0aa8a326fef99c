"""Keys: 64-bit numbers that determine everything random.

A key is mixed with a number (an epoch, a batch, a position in the order) into another key. The function is the
finaliser of splitmix64 over a Weyl sequence: a bijection for every key, so two positions of an epoch never share a key.
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def mix(key: int, number: int) -> int:
    """Return the key that belongs to `number` under `key`.

    Example:
        >>> mix(7, 1) == mix(7, 1), mix(7, 1) == mix(7, 2)
        (True, False)
    """
    z = (key + (number + 1) * _STEP) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def mix_array(key: int, numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return `mix(key, number)` for each number.

    Example:
        >>> mix_array(7, np.array([1])).tolist() == [mix(7, 1)]
        True
    """
    z = numbers.astype(np.uint64)
    z += np.uint64(1)
    z *= np.uint64(_STEP)
    z += np.uint64(key & _MASK)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


# Any: what a user gives.
def checked_seed(seed: Any) -> int:
    """Return the option `seed=` as a plain integer. Raises BadOption: it is not an integer.

    Example:
        >>> checked_seed(np.int64(7))
        7
    """
    try:
        if isinstance(seed, bool):
            raise TypeError
        return operator.index(seed)
    except TypeError:
        raise BadOption(f"seed={seed!r} is not an integer.") from None


def epoch_key(seed: int, epoch: int) -> int:
    """Return the key of an epoch. A seed may have any number of bits.

    Example:
        >>> epoch_key(0, 1) == epoch_key(0, 2)
        False
    """
    key = mix(0x66656564, seed & _MASK)
    while seed >> 64 not in (0, -1):
        seed >>= 64
        key = mix(key, seed & _MASK)
    return mix(key, epoch)
