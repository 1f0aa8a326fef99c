"""`map`: a function of each sample."""

from __future__ import annotations

from feedline.pipes.calling import Caller, Function, checked_function, name_of
from feedline.pipes.cursor import Cursor, OneToOneCursor, Stopped
from feedline.pipes.lap import Draws, Lap, Places, Samples
from feedline.pipes.stage import MapStage, Stage, StreamStage


class _Map(Stage):
    def __init__(self, source: Stage, function: Function, threads: int) -> None:
        self.sources = (source,)
        self.function = checked_function("map", function)
        self.threads = threads
        self.label = f"map({name_of(function)}{f', num_threads={threads}' if threads else ''})"
        self._call = Caller(self.label, function, self.depth, threads)


class MapSamples(_Map, MapStage):
    """A function of each sample of a map-style stage."""

    def __init__(self, source: MapStage, function: Function, threads: int = 0) -> None:
        super().__init__(source, function, threads)
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def origin(self, place: int, epoch: int) -> tuple[object, int]:
        return self._source.origin(place, epoch)

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        samples = self._source.read(places, epoch, draws)
        try:
            return self._call(samples, draws, (places % max(len(self), 1)).tolist())
        except Stopped as stop:
            raise stop.reason  # noqa: B904  its context is itself


class MapStream(_Map, StreamStage):
    """A function of each sample of a stream."""

    def __init__(self, source: StreamStage, function: Function, threads: int = 0) -> None:
        super().__init__(source, function, threads)
        self._source = source
        self.is_endless = source.is_endless
        self.is_sharded = source.is_sharded

    def count(self) -> int | None:
        return self._source.count()

    def open(self, lap: Lap) -> Cursor:
        return _MapCursor(self._source.open(lap), lap, self._call)


class _MapCursor(OneToOneCursor):
    def __init__(self, source: Cursor, lap: Lap, call: Caller) -> None:
        super().__init__(source, lap)
        self._call = call

    def _process(self, items: Samples, first: int) -> Samples:
        return self._call(items, self._lap.draws(first, len(items)), range(first, first + len(items)))
