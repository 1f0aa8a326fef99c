"""`enumerate`: pairs of a number and a sample."""

from __future__ import annotations

import builtins

from feedline.pipes.cursor import Cursor, OneToOneCursor
from feedline.pipes.lap import Draws, Lap, Places, Samples
from feedline.pipes.stage import MapStage, StreamStage


class NumberedSamples(MapStage):
    """Pairs of number and sample of a map-style stage."""

    def __init__(self, source: MapStage, start: int) -> None:
        self.sources = (source,)
        self._source = source
        self.start = start
        self.fixed = {"start": start}
        self.label = f"enumerate({start})" if start else "enumerate()"

    def __len__(self) -> int:
        return len(self._source)

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        numbers = (places % max(len(self), 1) + self.start).tolist()
        return list(zip(numbers, self._source.read(places, epoch, draws), strict=True))


class NumberedStream(StreamStage):
    """Pairs of number and sample of a stream."""

    def __init__(self, source: StreamStage, start: int) -> None:
        self.sources = (source,)
        self._source = source
        self.start = start
        self.fixed = {"start": start}
        self.label = f"enumerate({start})" if start else "enumerate()"
        self.is_endless = source.is_endless
        self.is_sharded = source.is_sharded

    def count(self) -> int | None:
        return self._source.count()

    def open(self, lap: Lap) -> Cursor:
        return _NumberCursor(self._source.open(lap), lap, self.start)


class _NumberCursor(OneToOneCursor):
    def __init__(self, source: Cursor, lap: Lap, start: int) -> None:
        super().__init__(source, lap)
        self._start = start

    def _process(self, items: Samples, first: int) -> Samples:
        return list(builtins.enumerate(items, self._start + first))
