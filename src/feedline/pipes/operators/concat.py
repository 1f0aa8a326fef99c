"""`concat`: one dataset after the other."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np

from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Draws, Lap, Places, Samples
from feedline.pipes.stage import MapStage, StreamStage


class Gathered(MapStage):
    """Samples of several map-style stages. Each is read with one call, however many of its samples there are."""

    def __init__(self, sources: tuple[MapStage, ...], label: str = "concat") -> None:
        super().__init__(*sources, label=label)
        self._parts = sources
        self.hands_on_images = all(part.hands_on_images for part in sources)

    @abstractmethod
    def _located(self, places: Places, epoch: int) -> tuple[Places, Places, int]:
        """Return the number of the stage of each sample, its place there, and the epoch of the stages."""

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        numbers, inner, epoch = self._located(places, epoch)
        found: Samples = [None] * len(numbers)
        for number in np.unique(numbers).tolist():
            own = np.flatnonzero(numbers == number)
            samples = self._parts[number].read(inner[own], epoch, draws.of(own).in_branch(number))
            for place, sample in zip(own.tolist(), samples, strict=True):
                found[place] = sample
        return found

    def origin(self, place: int, epoch: int) -> tuple[object, int]:
        numbers, inner, epoch = self._located(np.array([place]), epoch)
        return self._parts[int(numbers[0])].origin(int(inner[0]), epoch)


class JoinedSamples(Gathered):
    """Map-style stages, one after the other."""

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def _located(self, places: Places, epoch: int) -> tuple[Places, Places, int]:
        sizes = np.array([len(part) for part in self._parts], np.int64)
        ends = np.cumsum(sizes)
        passes, indices = np.divmod(places, max(int(ends[-1]), 1))
        numbers = np.searchsorted(ends, indices, side="right")
        return numbers, passes * sizes[numbers] + indices - (ends - sizes)[numbers], epoch


class JoinedStream(StreamStage):
    """Streams, one after the other."""

    def __init__(self, sources: tuple[StreamStage, ...], label: str = "concat") -> None:
        super().__init__(*sources, label=label)
        self.is_endless = any(part.is_endless for part in sources)

    def count(self) -> int | None:
        counts = self.counts()
        return None if counts is None else sum(counts)

    def open(self, lap: Lap) -> Cursor:
        return _JoinedCursor(self.parts, lap)


class _JoinedCursor(Cursor):
    def __init__(self, parts: tuple[StreamStage, ...], lap: Lap) -> None:
        self._parts = parts
        self._lap = lap
        self._number = 0
        self._source = self._opened()

    def _opened(self) -> Cursor:
        is_last = self._number + 1 == len(self._parts)
        lap = self._lap if is_last else replace(self._lap, is_followed=True)
        return self._parts[self._number].open(lap.in_branch(self._number))

    def _next_part(self) -> bool:
        if self._number + 1 >= len(self._parts):
            return False
        self._number += 1
        self._source = self._opened()
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
        self._source = self._opened()
        self._source.restore(state["source"])
