"""Quotas: whose turn it is at each place, when several take turns in given proportions.

Two with the shares p <= 1/2 and 1 - p take turns like this: places are cut into stretches such that place m belongs to
stretch floor(m p), so each is 1/p long, rounded down or up, and in each stretch the first has one turn, at a random
place. So at every place it has had m p turns, give or take less than one, how many it has had is known at once, and
there is no rhythm that a number of ranks or workers could fall in with. More than two are a tree: the two with the
least weight are taken as one, until all are (Huffman), which keeps what roundings add up to small.

Shares are multiples of 2**-32 and all arithmetic is on integers: the same on every machine, at places up to 2**63.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feedline.randomness.keys import mix, mix_array

_BITS = 32
_ONE = 1 << _BITS
_MASK = _ONE - 1


@dataclass(frozen=True)
class _Pair:
    """Two that take turns; each is a number, or a pair again."""

    less: _Pair | int
    more: _Pair | int
    share: int
    """Of the one with less weight, in units of 2**-32."""
    key: int


class Quota:
    """Whose turn it is at each place of an endless order, and which of its turns.

    Args:
        weights: not negative, not all 0. Those with weight 0 never have a turn.
        key: decides about the order. Counts follow from weights: up to every place, each has had its share of turns,
            give or take two (three among many of very different weight).

    Example:
        >>> quota = Quota([3, 1], key=7)
        >>> numbers, turns = quota.at(np.arange(8))
        >>> np.bincount(numbers).tolist()
        [6, 2]
        >>> turns[numbers == 1].tolist()
        [0, 1]
    """

    def __init__(self, weights: Sequence[float], key: int) -> None:
        heap: list[tuple[float, int, _Pair | int]] = [(w, number, number) for number, w in enumerate(weights) if w > 0]
        heapq.heapify(heap)
        pairs = 0
        while len(heap) > 1:
            weight, _, less = heapq.heappop(heap)
            other, _, more = heapq.heappop(heap)
            share = min(max(round(weight / (weight + other) * _ONE), 1), _ONE // 2)
            pair = _Pair(less, more, share, mix(key, pairs))
            pairs += 1
            # The second entry decides between equal weights, so that the tree is the same everywhere.
            heapq.heappush(heap, (weight + other, len(weights) + pairs, pair))
        self._root = heap[0][2]

    def at(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return for each place whose turn it is, and the how manieth of its turns, from 0."""
        numbers = np.empty(len(places), np.int64)
        turns = np.empty(len(places), np.int64)
        waiting = [(self._root, np.arange(len(places)), places.astype(np.uint64))]
        while waiting:
            node, where, counts = waiting.pop()
            if isinstance(node, int):
                numbers[where] = node
                turns[where] = counts.view(np.int64)
            elif len(where):
                is_less, earlier = _turns_of_less(node, counts)
                waiting.append((node.less, where[is_less], earlier[is_less]))
                waiting.append((node.more, where[~is_less], (counts - earlier)[~is_less]))
        return numbers, turns

    def one(self, place: int) -> tuple[int, int]:
        """Return what `at` returns for one place."""
        node, count = self._root, place
        while isinstance(node, _Pair):
            share = node.share
            stretch, rest = divmod(count * share, _ONE)
            step, first = divmod(rest, share)
            length = (_ONE - first + share - 1) // share
            chosen = (mix(node.key, stretch) >> _BITS) * length >> _BITS
            earlier = stretch + (step > chosen)
            node, count = (node.less, earlier) if step == chosen else (node.more, count - earlier)
        return node, count


def _turns_of_less(pair: _Pair, places: NDArray[np.uint64]) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Return at which places it is the turn of the one with less weight, and how many turns it has had before."""
    share, bits, mask = np.uint64(pair.share), np.uint64(_BITS), np.uint64(_MASK)
    # places * share in two words, since it may have more than 64 bits.
    product = (places & mask) * share
    stretches = (places >> bits) * share + (product >> bits)
    steps, first = np.divmod(product & mask, share)
    lengths = (np.uint64(_ONE) - first + share - np.uint64(1)) // share
    chosen = ((mix_array(pair.key, stretches.view(np.int64)) >> bits) * lengths) >> bits
    return steps == chosen, stretches + (steps > chosen)
