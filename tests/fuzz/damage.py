"""Damaging a file: bytes are flipped, cut off or moved."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection

FLIP, TRUNCATE, SPLICE = ALL = ("flip", "truncate", "splice")

_HEAD = 512
"""Half of all damage is near one of the ends, where most formats describe their contents."""
_EXTREMES = tuple(
    number.to_bytes(width, order)
    for width in (2, 4, 8)
    for number in (0, 1, (1 << 8 * width) - 1, (1 << 8 * width - 1) - 1, 1 << 8 * width - 1, 1 << 4 * width)
    for order in ("little", "big")
)


def damaged(data: bytes, rng: random.Random, kinds: Collection[str] = ALL) -> tuple[str, bytes]:
    """Return the kind of damage done, and the damaged bytes, which always differ from the original."""
    choices = [kind for kind in (FLIP, FLIP, TRUNCATE, SPLICE) if kind in kinds]
    while True:
        kind = rng.choice(choices)
        found = _ACTS[kind](data, rng)
        if found != data:
            return kind, found


def _place(data: bytes, rng: random.Random) -> int:
    where = rng.random()
    if where < 0.35:
        return rng.randrange(min(_HEAD, len(data)))
    if where < 0.5:
        return len(data) - 1 - rng.randrange(min(_HEAD, len(data)))
    return rng.randrange(len(data))


def _flip(data: bytes, rng: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        place = _place(data, rng)
        if rng.random() < 0.5:
            found[place] ^= 1 << rng.randrange(8)
        else:
            extreme = rng.choice(_EXTREMES)
            found[place : place + len(extreme)] = extreme[: len(data) - place]
    return bytes(found)


def _truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: _place(data, rng)]


def _splice(data: bytes, rng: random.Random) -> bytes:
    size = rng.choice((1, 8, 64, 512, 4096))
    start, goal = _place(data, rng), _place(data, rng)
    piece = bytes(size) if rng.random() < 0.25 else data[start : start + size]
    act = rng.randrange(3)
    if act == 0:  # overwritten
        return data[:goal] + piece + data[goal + len(piece) :]
    if act == 1:  # inserted
        return data[:goal] + piece + data[goal:]
    return data[:goal] + data[goal + size :]  # removed


_ACTS: dict[str, Callable[[bytes, random.Random], bytes]] = {FLIP: _flip, TRUNCATE: _truncate, SPLICE: _splice}
