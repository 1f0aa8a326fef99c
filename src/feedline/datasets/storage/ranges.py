"""Byte ranges that are wanted together, read in few requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

_LOCAL_GAP = 1 << 14
REMOTE_GAP = 1 << 18
"""The largest gap between two ranges to read and discard, rather than make two requests. Guesses."""
_MOST = 1 << 24
"""The most bytes of a read, unless a single range has more."""

T = TypeVar("T")
U = TypeVar("U")


class Range(Protocol):
    """Bytes of a file."""

    @property
    def shard(self) -> int:
        """The number of the file."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


R = TypeVar("R", bound=Range)


@dataclass(slots=True)
class Span(Generic[R]):
    """Ranges of one file that are read together."""

    shard: int
    start: int
    stop: int
    ranges: list[R]


def coalesced(ranges: Sequence[R], *, is_local: Callable[[int], bool]) -> list[Span[R]]:
    """Return the reads that cover all ranges, sorted by file and offset."""
    spans: list[Span[R]] = []
    gap = 0
    for one in sorted(ranges, key=attrgetter("shard", "start")):
        last = spans[-1] if spans else None
        if last is None or last.shard != one.shard:
            gap = _LOCAL_GAP if is_local(one.shard) else REMOTE_GAP
        elif one.start <= last.stop + gap and max(one.stop, last.stop) - last.start <= max(
            _MOST, last.stop - last.start
        ):
            last.stop = max(last.stop, one.stop)
            last.ranges.append(one)
            continue
        spans.append(Span(one.shard, one.start, one.stop, [one]))
    return spans


def side_by_side(act: Callable[[T], U], items: Sequence[T], count: int) -> list[U]:
    """Call `act` for each item, up to `count` at the same time; return the results in order."""
    if min(count, len(items)) < 2:
        return [act(item) for item in items]
    with ThreadPoolExecutor(min(count, len(items)), "feedline-read") as threads:
        return list(threads.map(act, items))
