"""Which shards a part of an epoch reads, and what remains of shards that were started.

The shards of an epoch have one order for all parts. At the start of an epoch the parts take shards in turn. When a
different number of parts continues the epoch, the remainder is divided the same way: first the started shards, then the
others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.datasets.framework.passes import Part
from feedline.datasets.storage.content import Place
from feedline.errors import BadState

T = TypeVar("T")


class Entry(NamedTuple):
    """Where to begin to read a shard: a place, and what is known there."""

    at: int = 0
    base: int = 0
    offset: int = 0
    """As in `Place`."""
    ordinal: int = 0
    """The number of the sample at the place."""
    line: int = 1
    """The number of the line there, for formats of lines."""
    size: int = -1
    """The bytes of the shard; -1 if it was not opened yet."""
    packing: str = ""
    """The compression of the shard; empty if it has none, or was not opened yet."""

    @property
    def place(self) -> Place:
        return Place(self.at, self.base, self.offset)


BEGINNING = Entry()


@dataclass(frozen=True)
class ShardShare:
    """A shard, or what remains of one, that a part reads alone or shares with other parts."""

    turn: int
    """The shard's place in the order of the epoch."""
    place: int = 0
    every: int = 1
    """How many parts read the shard. Each takes every n-th sample, starting with `place`."""
    entry: Entry = BEGINNING
    ordinal: int = 0
    """The number of the first sample that is wanted."""
    came: frozenset[int] = frozenset()
    """Numbers of the samples from there on that were already returned."""

    @property
    def is_whole(self) -> bool:
        """True if no part has started the shard, and only one reads it."""
        return self == ShardShare(self.turn)

    @property
    def has_gaps(self) -> bool:
        """True if not all samples from the first one on are wanted."""
        return self.every > 1 or bool(self.came)

    def wants(self, ordinal: int) -> bool:
        """True if a sample is still to be returned by this part."""
        return ordinal >= self.ordinal and ordinal % self.every == self.place and ordinal not in self.came

    def part(self, place: int, every: int) -> ShardShare:
        """Return the share of one of several parts in this."""
        place, every = self.place + place * self.every, self.every * every
        came = frozenset(ordinal for ordinal in self.came if ordinal % every == place)
        return replace(self, place=place, every=every, came=came)

    def without(self, numbers: Sequence[bool] | NDArray[np.bool_]) -> ShardShare:
        """Return what remains, given for each remaining sample whether it has been returned since."""
        first = self.ordinal + (self.place - self.ordinal) % self.every
        most = first + (len(numbers) + len(self.came)) * self.every
        ordinals = (ordinal for ordinal in range(first, most, self.every) if ordinal not in self.came)
        came = frozenset(ordinal for ordinal, has_come in zip(ordinals, numbers, strict=False) if has_come)
        return replace(self, came=came.union(ordinal for ordinal in self.came if ordinal >= first))


def shared_out(whole: Sequence[T], part: Part) -> tuple[Sequence[T], tuple[T, int, int] | None]:
    """Return the items of a part: parts take one each in turn, while there are enough for all.

    Leftover items, or all if there are fewer items than parts, are each shared by several parts. For this part's shared
    item, return the item, the part's place among its readers, and the number of readers.
    """
    number, count = part
    even = len(whole) - len(whole) % count
    own, left = whole[number:even:count], whole[even:]
    if not left:
        return own, None
    shared = number % len(left)
    return own, (left[shared], number // len(left), (count - shared + len(left) - 1) // len(left))


def shares_of(shard_count: int, part: Part) -> list[ShardShare]:
    """Return the shares that a part reads in an epoch, in order."""
    own, shared = shared_out(range(shard_count), part)
    shares = [ShardShare(turn) for turn in own]
    return shares if shared is None else [*shares, ShardShare(*shared)]


# Any, from here on: the contents of a state.
def resharded(left: Iterable[ShardShare], count: int) -> list[dict[str, object]]:
    """Divide the rest of an epoch among `count` parts; return where each starts, and its units."""
    whole = sorted(left, key=lambda share: (share.is_whole, share.turn, share.place))
    found = []
    for number in range(count):
        own, shared = shared_out(whole, (number, count))
        shares = [*own] if shared is None else [*own, shared[0].part(*shared[1:])]
        begin = shares[0] if shares else ShardShare(0)
        found.append({"entry": list(begin.entry), "ordinal": begin.ordinal, "units": written(shares)})
    return found


def written(shares: Sequence[ShardShare]) -> list[list[object]]:
    """Return shares in the form of a state: evenly spaced whole shards as [turn, step, count]."""
    lines: list[list[Any]] = []
    for share in shares:
        if not share.is_whole:
            first = share.ordinal + (share.place - share.ordinal) % share.every
            came = sum(1 << (ordinal - first) // share.every for ordinal in share.came)
            entry = [] if share.entry == BEGINNING else share.entry
            lines.append([share.turn, share.place, share.every, share.ordinal, f"{came:x}", *entry])
        elif lines and len(lines[-1]) == 3 and lines[-1][2] == 1:
            lines[-1][1:] = [share.turn - lines[-1][0], 2]
        elif lines and len(lines[-1]) == 3 and lines[-1][0] + lines[-1][1] * lines[-1][2] == share.turn:
            lines[-1][2] += 1
        else:
            lines.append([share.turn, 1, 1])
    return lines


def read(lines: Any, shard_count: int) -> list[ShardShare]:
    """Return the shares that `written` encoded."""
    shares: list[ShardShare] = []
    try:
        for turn, *line in lines:
            if len(line) == 2:
                step, count = line
                shares += [ShardShare(turn + step * number) for number in range(min(count, shard_count))]
                continue
            place, every, ordinal, text, *entry = line
            first, bits = ordinal + (place - ordinal) % every, int(text, 16)
            came = frozenset(first + number * every for number, bit in enumerate(f"{bits:b}"[::-1]) if bit == "1")
            shares.append(ShardShare(turn, place, every, Entry(*entry), ordinal, came))
        if not all(0 <= share.turn < shard_count for share in shares):
            raise ValueError
    except (TypeError, ValueError, ArithmeticError) as exc:
        raise BadState(
            f"The state is damaged: {lines!r:.200} does not say which shards are left. Load one that is whole, or "
            "begin the epoch anew."
        ) from exc
    return shares
