"""`repeat`: the samples again and again, in another order each time if they are shuffled before."""

from __future__ import annotations

from dataclasses import replace

from feedline.errors import SourceError
from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Lap, Places, Samples
from feedline.pipes.stage import MapStage, Reordered, StreamStage
from feedline.system.failures import note_last

_MOST_EMPTY = 8
"""Turns without a sample after which an endless stream counts as empty: a filter may draw at random."""


class RepeatedSamples(Reordered):
    """A map-style stage several times over. Its places are those of the source, which continue after a pass."""

    def __init__(self, source: MapStage, times: int) -> None:
        super().__init__(source, f"repeat({times})", {"times": times})
        self.times = times

    def __len__(self) -> int:
        return self.times * len(self._source)

    def _inner(self, places: Places, epoch: int) -> Places:
        return places

    def _inner_epoch(self, epoch: int) -> int:
        # Mixtures continue from epoch to epoch, and an epoch has `times` passes.
        return epoch * self.times


class RepeatedStream(StreamStage):
    """A stream several times over, or forever."""

    def __init__(self, source: StreamStage, times: int | None) -> None:
        super().__init__(source, label=f"repeat({'' if times is None else times})", fixed={"times": times})
        self.times = times
        self.is_endless = times is None

    def count(self) -> int | None:
        count = self.parts[0].count()
        return None if count is None or self.times is None else count * self.times

    def open(self, lap: Lap) -> Cursor:
        return _RepeatCursor(self, lap)


class _RepeatCursor(Cursor):
    def __init__(self, stage: RepeatedStream, lap: Lap) -> None:
        self._stage = stage
        self._lap = lap
        self._turn = 0
        self._empty = 0
        """Turns in a row that gave no sample: an empty stream is not repeated forever."""
        self._source = self._opened()

    def _opened(self) -> Cursor:
        number = self._lap.number * (self._stage.times or 1) + self._turn
        return self._stage.parts[0].open(replace(self._lap, number=number, is_followed=True))

    def _next_turn(self) -> bool:
        times = self._stage.times
        if times is not None and self._turn + 1 >= times:
            return False
        if times is None and self._empty >= _MOST_EMPTY:
            exc = SourceError(
                f"{self._stage.parts[0].label} yields no samples, even when it is repeated. Check that the data is "
                "there, and that filters let some samples pass."
            )
            note_last(exc)
            raise exc
        self._turn += 1
        self._empty += 1
        self._source = self._opened()
        return True

    def take(self, count: int) -> Samples:
        while True:
            try:
                found = self._source.take(count)
            except Exception:
                self._empty = 0
                raise
            if found:
                self._empty = 0
                return found
            if not self._next_turn():
                return found

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count:
            past = self._source.skip(count - skipped)
            self._empty = 0 if past else self._empty
            skipped += past
            if skipped < count and not self._next_turn():
                break
        return skipped

    def try_again(self) -> bool:
        return self._source.try_again()

    def state(self) -> CursorState:
        return {"turn": self._turn, "empty": self._empty, "source": self._source.state()}

    def restore(self, state: CursorState) -> None:
        self._turn, self._empty = state["turn"], state["empty"]
        self._source = self._opened()
        self._source.restore(state["source"])
