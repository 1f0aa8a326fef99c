"""Which shards a worker of a rank reads, in which order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from feedline.randomness.bijection import Bijection


@dataclass(frozen=True)
class Part:
    """One of several equal readers: a worker of a rank."""

    number: int = 0
    count: int = 1


@dataclass(frozen=True)
class Stint:
    """A shard that a part reads, alone or with others."""

    shard: int
    place: int = 0
    every: int = 1
    """How many parts read it. Each takes every so-manieth sample, beginning with `place`."""


def stints(shard_count: int, part: Part, key: int | None) -> list[Stint]:
    """Return what a part reads in an epoch.

    All shards are put in random order first; then every part takes one, and again, while there are enough for all.
    Those left over, or all if there are fewer shards than parts, are each read by several parts.

    Args:
        shard_count: how many there are.
        part: which one.
        key: decides about the order; None for the order in which they were given.

    Example:
        >>> [stints(5, Part(number, 2), None) for number in range(2)]  # doctest: +NORMALIZE_WHITESPACE
        [[Stint(shard=0, place=0, every=1), Stint(shard=2, place=0, every=1), Stint(shard=4, place=0, every=2)],
         [Stint(shard=1, place=0, every=1), Stint(shard=3, place=0, every=1), Stint(shard=4, place=1, every=2)]]
    """
    places = np.arange(shard_count)
    order: list[int] = (places if key is None else Bijection(shard_count, key)(places)).tolist()
    whole = shard_count - shard_count % part.count
    own = [Stint(shard) for shard in order[part.number : whole : part.count]]
    left = order[whole:]
    if left:
        shared = part.number % len(left)
        every = (part.count - shared + len(left) - 1) // len(left)
        own.append(Stint(left[shared], part.number // len(left), every))
    return own
