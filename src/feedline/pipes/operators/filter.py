"""`filter`: the samples for which a function is true."""

from __future__ import annotations

from itertools import compress

from feedline.pipes.calling import Caller, Function, agree, checked_function, name_of
from feedline.pipes.cursor import Cursor, OperatorCursor, Stopped
from feedline.pipes.lap import Lap, Samples
from feedline.pipes.stage import StreamStage

_MOST = 256
"""The most samples to try at a time if only one is needed: few of them may pass."""


class Filter(StreamStage):
    """The samples of a stream for which a function is true."""

    def __init__(self, source: StreamStage, function: Function) -> None:
        self.sources = (source,)
        self._source = source
        self.label = f"filter({name_of(function)})"
        self.is_endless = source.is_endless
        self.is_sharded = source.is_sharded
        self.call = Caller(self.label, checked_function("filter", function), self.depth, filters=True)

    def open(self, lap: Lap) -> Cursor:
        return _FilterCursor(self._source.open(lap), lap, self)


class _FilterCursor(OperatorCursor):
    def __init__(self, source: Cursor, lap: Lap, stage: Filter) -> None:
        super().__init__(source, lap)
        self._stage = stage
        self._chunk = 1

    def _need(self, count: int) -> int:
        self._chunk = min(2 * self._chunk, _MOST)  # begins with few, so that the first sample comes soon
        return max(count, self._chunk)

    def _process(self, items: Samples, first: int) -> Samples:
        draws, numbers = self._lap.draws(first, len(items)), range(first, first + len(items))
        try:
            return self._passed(items, self._stage.call(items, draws, numbers), first)
        except Stopped as stop:
            raise Stopped(stop.reason, self._passed(items, stop.made, first), stop.items, stop.rest) from None

    def _passed(self, items: Samples, passes: list[bool], first: int) -> Samples:
        agree((self._stage.identity, self._lap), self._stage.label, first, passes)
        return list(compress(items, passes))
