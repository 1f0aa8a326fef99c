"""`concat`: one dataset after the other."""

from __future__ import annotations

import numpy as np

from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Draws, Lap, Places, Samples
from feedline.pipes.stage import MapStage, StreamStage


class JoinedSamples(MapStage):
    """Map-style stages, one after the other."""

    label = "concat"

    def __init__(self, sources: tuple[MapStage, ...]) -> None:
        self.sources = self._parts = sources

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        sizes = np.array([len(part) for part in self._parts], np.int64)
        ends = np.cumsum(sizes)
        passes, indices = np.divmod(places, max(int(ends[-1]), 1))
        numbers = np.searchsorted(ends, indices, side="right")
        inner = passes * sizes[numbers] + indices - (ends - sizes)[numbers]
        return gathered(self._parts, numbers, inner, epoch, draws)


# Parts are read with one call each, however many samples of them there are.
def gathered(parts: tuple[MapStage, ...], numbers: Places, inner: Places, epoch: int, draws: Draws) -> Samples:
    """Return samples of several stages: for each, the number of its stage and its place there."""
    found: Samples = [None] * len(numbers)
    for number in np.unique(numbers).tolist():
        own = np.flatnonzero(numbers == number)
        samples = parts[number].read(inner[own], epoch, draws.of(own).in_branch(number))
        for place, sample in zip(own.tolist(), samples, strict=True):
            found[place] = sample
    return found


class JoinedStream(StreamStage):
    """Streams, one after the other."""

    label = "concat"

    def __init__(self, sources: tuple[StreamStage, ...]) -> None:
        self.sources = self.parts = sources
        self.is_endless = any(part.is_endless for part in sources)
        self.is_sharded = all(part.is_sharded for part in sources)

    def count(self) -> int | None:
        counts = [part.count() for part in self.parts]
        return None if None in counts else sum(count or 0 for count in counts)

    def open(self, lap: Lap) -> Cursor:
        return _JoinedCursor(self.parts, lap)


class _JoinedCursor(Cursor):
    def __init__(self, parts: tuple[StreamStage, ...], lap: Lap) -> None:
        self._parts = parts
        self._lap = lap
        self._number = 0
        self._source = parts[0].open(lap.in_branch(0))

    def _next_part(self) -> bool:
        if self._number + 1 >= len(self._parts):
            return False
        self._number += 1
        self._source = self._parts[self._number].open(self._lap.in_branch(self._number))
        return True

    def take(self, count: int) -> Samples:
        while True:
            found = self._source.take(count)
            if found or not self._next_part():
                return found

    def skip(self, count: int) -> int:
        skipped = self._source.skip(count)
        while skipped < count and self._next_part():
            skipped += self._source.skip(count - skipped)
        return skipped

    def try_again(self) -> bool:
        return self._source.try_again()

    def state(self) -> CursorState:
        return {"part": self._number, "source": self._source.state()}

    def restore(self, state: CursorState) -> None:
        self._number = state["part"]
        self._source = self._parts[self._number].open(self._lap.in_branch(self._number))
        self._source.restore(state["source"])
