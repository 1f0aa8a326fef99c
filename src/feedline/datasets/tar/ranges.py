"""Many small reads made few large ones."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

_LOCAL_GAP = 1 << 14
_REMOTE_GAP = 1 << 18
"""Bytes between two ranges that are read for nothing, rather than asking twice. Guesses."""
_MOST = 1 << 24
"""Bytes of a read, unless a field has more."""


@dataclass(slots=True)
class Range:
    """The bytes of a field, and whose they are."""

    shard: int
    start: int
    stop: int
    # Any: a sample that is being put together.
    sample: dict[str, Any]
    name: str
    row: int = 0
    """Which sample of the batch it is."""


@dataclass(slots=True)
class Span:
    """Ranges of one shard that are read together."""

    shard: int
    start: int
    stop: int
    ranges: list[Range]

    def give(self, data: bytes, viewed: Collection[str] = ()) -> None:
        """Put the bytes where they belong; those of some fields as views, without copying them."""
        view = memoryview(data)
        for one in self.ranges:
            start, stop = one.start - self.start, one.stop - self.start
            one.sample[one.name] = view[start:stop] if one.name in viewed else data[start:stop]


def coalesced(ranges: list[Range], *, is_local: Callable[[int], bool]) -> list[Span]:
    """Return the reads that bring all ranges, sorted by shard and place.

    Args:
        ranges: in any order; they may overlap, and may be the same.
        is_local: says of a shard whether a read costs next to nothing beyond its bytes.

    Example:
        >>> spans = coalesced([Range(0, 500, 600, {}, "a"), Range(0, 0, 100, {}, "b")], is_local=lambda shard: True)
        >>> [(span.start, span.stop) for span in spans]
        [(0, 600)]
    """
    spans: list[Span] = []
    gap = 0
    for one in sorted(ranges, key=attrgetter("shard", "start")):
        last = spans[-1] if spans else None
        if last is None or last.shard != one.shard:
            gap = _LOCAL_GAP if is_local(one.shard) else _REMOTE_GAP
        elif one.start <= last.stop + gap and max(one.stop, last.stop) - last.start <= max(
            _MOST, last.stop - last.start
        ):
            last.stop = max(last.stop, one.stop)
            last.ranges.append(one)
            continue
        spans.append(Span(one.shard, one.start, one.stop, [one]))
    return spans
