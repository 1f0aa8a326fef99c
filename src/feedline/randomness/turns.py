"""Whose turn it is, in a mixture with given weights: exact for every prefix, random otherwise, and O(1) anywhere.

Among the first m positions, a member with the share w has w * m turns, rounded down or up, for every m. Its i-th turn
therefore has to come at one of a few positions: not before position (i - 1) / w, and before i / w. At each position,
one of the members whose next turn may come there is drawn: the fewer positions a turn has left, the more likely. A draw
that would make another turn miss its last position later on does not count (Still's condition for apportionments within
their quotas). So there is no rhythm that could coincide with the number of ranks or workers.

Shares are multiples of 1 / size of a table, so the order repeats after that many positions, and any position is found
in the table.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

SIZE = 1 << 14
"""Minimum number of entries in a table, because a short order would be repeated over and over; the maximum is twice as
many. Weights without a common denominator up to this are rounded to multiples of 1 / 16,384."""
_EXACT = 1 << 10
"""Weights such as 0.7 are read as fractions with a denominator up to this."""

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

    def one(self, place: int) -> tuple[int, int]:
        """Return what `at` returns for one place."""
        rounds, rest = divmod(place, self._size)
        member = int(self._members[rest])
        return member, rounds * int(self._shares[member]) + int(self._numbers[rest])

    def before(self, place: int) -> Numbers:
        """Return how many turns each member has had before a place."""
        rounds, rest = divmod(place, self._size)
        counts = np.bincount(self._members[:rest], minlength=len(self._shares))
        found: Numbers = rounds * self._shares + counts
        return found


@functools.lru_cache(maxsize=64)
def _table(weights: tuple[float, ...], key: int) -> tuple[Numbers, Numbers, Numbers]:
    shares = _whole_shares(weights)
    members = _order(shares, key)
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
        if sum(whole) <= SIZE:
            return np.array(whole, np.int64) * -(-SIZE // sum(whole))
    return _rounded(weights)


def _rounded(weights: tuple[float, ...]) -> Numbers:
    exact = np.array(weights) / math.fsum(weights) * SIZE
    shares = np.where(exact > 0, np.maximum(np.floor(exact), 1), 0).astype(np.int64)
    while (missing := SIZE - int(shares.sum())) > 0:
        behind = np.argsort(shares - exact, kind="stable")[:missing]
        shares[behind] += 1
    while (missing := int(shares.sum()) - SIZE) > 0:
        ahead = np.argsort(np.where(shares > 1, exact - shares, np.inf), kind="stable")[:missing]
        shares[ahead] -= 1
    return shares


def _order(shares: Numbers, key: int) -> Numbers:
    """Return whose turn it is at each position of a table."""
    size, chance = int(shares.sum()), random.Random(key)
    counts = [share for share in shares.tolist() if share]
    owners = [member for member, share in enumerate(shares.tolist()) if share]
    # For every position: how many turns may have come by then whose last position is that one or a later one. That is
    # all positions up to it, less the turns that have to be done by then.
    lasts = np.concatenate([_last(np.arange(count), size, count) for count in counts])
    spare = np.arange(1, size + 1) - np.cumsum(np.bincount(lasts, minlength=size))
    members, done = np.empty(size, np.int64), [0] * len(counts)
    majority = next((number for number, count in enumerate(counts) if 2 * count > size), None)
    due = [(0, _last(0, size, count)) for count in counts]
    """The first and last position of each member's next turn."""
    for place in range(size):
        left = [number for number, (first, _) in enumerate(due) if first <= place]
        while True:
            chosen = left[0] if len(left) == 1 else _drawn(left, due, place, majority, chance)
            last = due[chosen][1]
            if last == place or spare[place:last].min() > 0:
                break
            left.remove(chosen)
        spare[place:last] -= 1
        members[place] = owners[chosen]
        done[chosen] += 1
        due[chosen] = done[chosen] * size // counts[chosen], _last(done[chosen], size, counts[chosen])
    return members


def _drawn(left: list[int], due: list[tuple[int, int]], place: int, majority: int | None, chance: random.Random) -> int:
    """Draw a member so that each turn is equally likely at each of its positions.

    A member with more than half of all turns gets the positions that the others leave.
    """
    urgency = [0 if number == majority else 1 / (due[number][1] - place + 1) for number in left]
    if majority in left:
        urgency[left.index(majority)] = max(1e-9, 1 - sum(urgency))
    return chance.choices(left, urgency)[0]


# Both for one number and for arrays of them.
Whole = TypeVar("Whole", int, Numbers)


def _last(number: Whole, size: int, count: int) -> Whole:
    """Return the last position that a turn may have."""
    return -(-(number + 1) * size // count) - 1
