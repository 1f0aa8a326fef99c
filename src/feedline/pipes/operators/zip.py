"""`zip`: tuples of one sample of each dataset."""

from __future__ import annotations

import builtins

import numpy as np

from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Draws, Lap, Places, Samples
from feedline.pipes.stage import MapStage, StreamStage
from feedline.pipes.weaving import buffers


class ZippedSamples(MapStage):
    """Tuples of the samples of map-style stages at the same place; as many as the shortest has."""

    def __init__(self, sources: tuple[MapStage, ...]) -> None:
        super().__init__(*sources, label="zip")

    def __len__(self) -> int:
        return min(builtins.map(len, self.sources))

    def read(self, places: Places, epoch: int, draws: Draws) -> Samples:
        passes, indices = np.divmod(places, max(len(self), 1))
        columns = [
            part.read(passes * len(part) + indices, epoch, draws.in_branch(number))
            for number, part in builtins.enumerate(self.sources)
        ]
        return list(builtins.zip(*columns, strict=True))


class ZippedStream(StreamStage):
    """Tuples of the samples of streams; ends with the first one that ends."""

    def __init__(self, sources: tuple[StreamStage, ...]) -> None:
        super().__init__(*sources, label="zip")

    def count(self) -> int | None:
        counts = [part.count() for part in self.parts if not part.is_endless]
        known = [count for count in counts if count is not None]
        return min(known) if known and len(known) == len(counts) else None

    def open(self, lap: Lap) -> Cursor:
        return _ZipCursor(self, lap)


class _ZipCursor(Cursor):
    def __init__(self, stage: ZippedStream, lap: Lap) -> None:
        self._buffers = buffers(stage.parts, lap)
        self._ended = False

    def take(self, count: int) -> Samples:
        found: Samples = []
        for buffer in self._buffers if not self._ended else ():
            buffer.fill(count)
        while len(found) < count and not self._ended:
            if found and any(buffer.fails for buffer in self._buffers):
                break
            row = self._row()
            if row is not None:
                found.append(row)
        return found

    def _row(self) -> tuple[object, ...] | None:
        """Return the next tuple; None at the end. If a sample fails, those beside it are gone, too."""
        row, failure = [], None
        for buffer in self._buffers:
            try:
                row.append(buffer.pop())
            except StopIteration:
                self._ended = True
                return None
            except Exception as exc:
                failure = failure or exc
        if failure is not None:
            raise failure
        return tuple(row)

    def skip(self, count: int) -> int:
        if self._ended:
            return 0
        skipped = min(buffer.skip(count) for buffer in self._buffers)
        self._ended = skipped < count
        return skipped

    def state(self) -> CursorState:
        return {"ended": self._ended, "sources": [buffer.state() for buffer in self._buffers]}

    def restore(self, state: CursorState) -> None:
        self._ended = state["ended"]
        for buffer, own in builtins.zip(self._buffers, state["sources"], strict=True):
            buffer.restore(own)
