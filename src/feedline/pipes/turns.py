"""Whose turn it is, in a mixture with given weights: exact for every prefix, random otherwise, and O(1) anywhere.

Among the first m positions, a member with the share w has w * m turns, rounded down or up, for every m. Its i-th turn
therefore has to come at one of a few positions: not before position (i - 1) / w, and before i / w. Such an order always
exists for all members together; serving the turn with the nearest deadline finds it (Tijdeman's chairman assignment).
Exchanging turns at random within their limits then removes its rhythm, which could otherwise coincide with the number
of ranks or workers.

Shares are multiples of 1 / size of a table, so the order repeats after that many positions, and any position is found
in the table.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.keys import mix_array

LARGEST = 1 << 15
"""Entries of a table at most. Weights with a larger common denominator are rounded to multiples of 1 / 32,768."""
_LEAST = 1 << 12
"""Entries at least, so that a short order is not repeated over and over."""
_EXACT = 1 << 10
"""Weights such as 0.7 are read as fractions with a denominator up to this."""
_EXCHANGES = 6
"""Attempts to exchange each turn."""

Numbers = NDArray[np.int64]


class Turns:
    """The order in which members have their turns.

    Args:
        weights: of the members: not negative, not all 0. A member with weight 0 has no turn.
        key: determines the order.

    Example:
        >>> turns = Turns([0.7, 0.2, 0.1], key=7)
        >>> members, numbers = turns.at(np.arange(10))
        >>> np.bincount(members).tolist()
        [7, 2, 1]
    """

    def __init__(self, weights: Sequence[float], key: int) -> None:
        self._members, self._numbers, self._shares = _table(tuple(map(float, weights)), key)
        self._size = len(self._members)

    def at(self, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return whose turn it is at each place, and how many turns that member has had before."""
        rounds, rest = np.divmod(places, self._size)
        members = self._members[rest].astype(np.int64)
        return members, rounds * self._shares[members] + self._numbers[rest]

    def before(self, place: int) -> Numbers:
        """Return how many turns each member has had before a place."""
        rounds, rest = divmod(place, self._size)
        counts = np.bincount(self._members[:rest], minlength=len(self._shares))
        found: Numbers = rounds * self._shares + counts
        return found


@functools.lru_cache(maxsize=64)
def _table(weights: tuple[float, ...], key: int) -> tuple[Numbers, Numbers, Numbers]:
    shares = _whole_shares(weights)
    members = _exchanged(_by_deadline(shares), shares, key)
    numbers = np.empty(len(members), np.int64)
    for member in range(len(weights)):
        own = np.flatnonzero(members == member)
        numbers[own] = np.arange(len(own))
    return members, numbers, shares


def _whole_shares(weights: tuple[float, ...]) -> Numbers:
    """Return weights as whole numbers of turns in a table."""
    fractions = [Fraction(weight).limit_denominator(_EXACT) for weight in weights]
    if all(math.isclose(fraction, weight, rel_tol=1e-12) for fraction, weight in zip(fractions, weights, strict=True)):
        scale = math.lcm(*(fraction.denominator for fraction in fractions))
        whole = [int(fraction * scale) for fraction in fractions]
        common = math.gcd(*whole)
        whole = [count // common for count in whole]
        if sum(whole) <= LARGEST:
            return np.array(whole, np.int64) * -(-_LEAST // sum(whole))
    return _rounded(weights)


def _rounded(weights: tuple[float, ...]) -> Numbers:
    exact = np.array(weights) / math.fsum(weights) * LARGEST
    shares = np.where(exact > 0, np.maximum(np.floor(exact), 1), 0).astype(np.int64)
    while (missing := LARGEST - int(shares.sum())) > 0:
        behind = np.argsort(shares - exact, kind="stable")[:missing]
        shares[behind] += 1
    while (missing := int(shares.sum()) - LARGEST) > 0:
        ahead = np.argsort(np.where(shares > 1, exact - shares, np.inf), kind="stable")[:missing]
        shares[ahead] -= 1
    return shares


def _limits(shares: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """Return all turns of a table: whose they are, their first possible position, and their last one."""
    size, owners = int(shares.sum()), np.repeat(np.arange(len(shares)), shares)
    numbers = np.concatenate([np.arange(share) for share in shares])
    share = shares[owners]
    return owners, numbers * size // share, -(-(numbers + 1) * size // share) - 1


def _by_deadline(shares: Numbers) -> Numbers:
    owners, firsts, lasts = _limits(shares)
    order = np.argsort(firsts, kind="stable")
    waiting: list[tuple[int, int]] = []
    members, next_turn = np.empty(len(owners), np.int64), 0
    turns = list(zip(firsts[order].tolist(), lasts[order].tolist(), owners[order].tolist(), strict=True))
    for place in range(len(turns)):
        while next_turn < len(turns) and turns[next_turn][0] <= place:
            heapq.heappush(waiting, turns[next_turn][1:])
            next_turn += 1
        members[place] = heapq.heappop(waiting)[1]
    return members


def _exchanged(members: Numbers, shares: Numbers, key: int) -> Numbers:
    """Exchange turns at random, where both stay within their limits."""
    size = len(members)
    owners, firsts, lasts = _limits(shares)
    starts = np.cumsum(shares) - shares
    turn_at = np.empty(size, np.int64)
    for member in range(len(shares)):
        own = np.flatnonzero(members == member)
        turn_at[own] = starts[member] + np.arange(len(own))
    turns, first, last = turn_at.tolist(), firsts.tolist(), lasts.tolist()
    reach = max(2, 2 * len(shares))
    draws = (mix_array(key, np.arange(size * _EXCHANGES)) >> np.uint64(40)).astype(np.int64) % reach + 1
    for step, distance in enumerate(draws.tolist()):
        place = step % size
        other = place + distance
        if other < size and last[turns[place]] >= other and first[turns[other]] <= place:
            turns[place], turns[other] = turns[other], turns[place]
    return owners[np.array(turns, np.int64)]
