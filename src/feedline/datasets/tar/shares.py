"""Which shards a part of an epoch reads, and what is left of those that were begun.

The shards of an epoch have a common order. At its beginning every part takes one in turn; when other parts go on, in
another number, what is left is shared out in the same way: first the shards that were begun, then the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.passes import Part
from feedline.errors import BadState

T = TypeVar("T")


@dataclass(frozen=True)
class ShardShare:
    """A shard that a part reads, alone or with others, all of it or what is left of it."""

    turn: int
    """Its place in the common order of the epoch's shards."""
    place: int = 0
    every: int = 1
    """How many parts read it. Each takes every n-th sample, beginning with `place`."""
    offset: int = 0
    ordinal: int = 0
    """Where it is entered: the byte, and the number of the sample that begins there."""
    came: frozenset[int] = frozenset()
    """Samples from there on that have come already, by their numbers in the shard."""

    @property
    def is_whole(self) -> bool:
        """True if nobody has begun it, and nobody else reads it."""
        return self == ShardShare(self.turn)

    def part(self, place: int, every: int) -> ShardShare:
        """Return what one of several parts reads of this."""
        place, every = self.place + place * self.every, self.every * every
        came = frozenset(ordinal for ordinal in self.came if ordinal % every == place)
        return replace(self, place=place, every=every, came=came)

    def without(self, numbers: Sequence[bool] | NDArray[np.bool_]) -> ShardShare:
        """Return what is left when these samples have come, of those that were left: True for each that has."""
        first = self.ordinal + (self.place - self.ordinal) % self.every
        most = first + (len(numbers) + len(self.came)) * self.every
        ordinals = (ordinal for ordinal in range(first, most, self.every) if ordinal not in self.came)
        came = frozenset(ordinal for ordinal, has_come in zip(ordinals, numbers, strict=False) if has_come)
        return replace(self, came=came.union(ordinal for ordinal in self.came if ordinal >= first))


def shared_out(whole: Sequence[T], part: Part) -> tuple[Sequence[T], tuple[T, int, int] | None]:
    """Return what a part gets: every part takes one, and again, while there are enough for all.

    Those left over, or all if there are fewer than parts, are each read by several parts: one of them, and of how many
    which one this part is.
    """
    number, count = part
    even = len(whole) - len(whole) % count
    own, left = whole[number:even:count], whole[even:]
    if not left:
        return own, None
    shared = number % len(left)
    return own, (left[shared], number // len(left), (count - shared + len(left) - 1) // len(left))


def shares_of(shard_count: int, part: Part) -> list[ShardShare]:
    """Return what a part reads in an epoch, in order."""
    own, shared = shared_out(range(shard_count), part)
    shares = [ShardShare(turn) for turn in own]
    return shares if shared is None else [*shares, ShardShare(*shared)]


# Any, from here on: what a state holds.
def resharded(left: Iterable[ShardShare], count: int) -> list[dict[str, Any]]:
    """Share out what is left of an epoch among so many parts; return where each begins, and with which units."""
    whole = sorted(left, key=lambda share: (share.is_whole, share.turn, share.place))
    found = []
    for number in range(count):
        own, shared = shared_out(whole, (number, count))
        shares = [*own] if shared is None else [*own, shared[0].part(*shared[1:])]
        begin = shares[0] if shares else ShardShare(0)
        found.append({"offset": begin.offset, "ordinal": begin.ordinal, "units": written(shares)})
    return found


def written(shares: Sequence[ShardShare]) -> list[list[Any]]:
    """Return shares as a state holds them: whole ones that follow each other evenly as [turn, step, count]."""
    lines: list[list[Any]] = []
    for share in shares:
        if not share.is_whole:
            first = share.ordinal + (share.place - share.ordinal) % share.every
            came = sum(1 << (ordinal - first) // share.every for ordinal in share.came)
            lines.append([share.turn, share.place, share.every, share.offset, share.ordinal, f"{came:x}"])
        elif lines and len(lines[-1]) == 3 and lines[-1][2] == 1:
            lines[-1][1:] = [share.turn - lines[-1][0], 2]
        elif lines and len(lines[-1]) == 3 and lines[-1][0] + lines[-1][1] * lines[-1][2] == share.turn:
            lines[-1][2] += 1
        else:
            lines.append([share.turn, 1, 1])
    return lines


def read(lines: Any, shard_count: int) -> list[ShardShare]:
    """Return shares from what `written` made of them."""
    shares: list[ShardShare] = []
    try:
        for turn, *line in lines:
            if len(line) == 2:
                step, count = line
                shares += [ShardShare(turn + step * number) for number in range(min(count, shard_count))]
                continue
            place, every, offset, ordinal, text = line
            first, bits = ordinal + (place - ordinal) % every, int(text, 16)
            came = frozenset(first + number * every for number, bit in enumerate(f"{bits:b}"[::-1]) if bit == "1")
            shares.append(ShardShare(turn, place, every, offset, ordinal, came))
        if not all(0 <= share.turn < shard_count for share in shares):
            raise ValueError
    except (TypeError, ValueError, ArithmeticError) as exc:
        raise BadState(
            f"The state is damaged: {lines!r:.200} does not say which shards are left. Load one that is whole, or "
            "begin the epoch anew."
        ) from exc
    return shares
