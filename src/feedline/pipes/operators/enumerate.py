"""`enumerate`: pairs of a number and a sample."""

from __future__ import annotations

from itertools import count

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

    def origin(self, place: int, epoch: int) -> tuple[object, int]:
        return self._source.origin(place, epoch)

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        numbers = (places % max(len(self), 1) + self.start).tolist()
        return list(zip(numbers, self._source.read(places, epoch, draws), strict=True))


class NumberedStream(StreamStage):
    """Pairs of number and sample of a stream. Parts of one that splits itself count in turn, as in `slice`."""

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
        part, parts = lap.part if self.is_sharded else (0, 1)
        return _NumberCursor(self._source.open(lap), lap, self.start + part, parts)


class _NumberCursor(OneToOneCursor):
    def __init__(self, source: Cursor, lap: Lap, start: int, step: int) -> None:
        super().__init__(source, lap)
        self._start, self._step = start, step

    def _process(self, items: Samples, first: int) -> Samples:
        return list(zip(count(self._start + first * self._step, self._step), items, strict=False))
