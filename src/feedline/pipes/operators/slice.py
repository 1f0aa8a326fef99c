"""`slice`, `take` and `skip`: some of the samples, by their number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Lap, Places, Samples
from feedline.pipes.stage import MapStage, Reordered, StreamStage


class SlicedSamples(Reordered):
    """Some samples of a map-style stage; `chosen` has their numbers."""

    def __init__(self, source: MapStage, chosen: range, label: str, options: Mapping[str, object]) -> None:
        super().__init__(source, label)
        self._chosen = chosen
        self.fixed = options

    def __len__(self) -> int:
        return len(self._chosen)

    def _inner(self, places: Places, epoch: int) -> Places:
        passes, numbers = np.divmod(places, max(len(self._chosen), 1))
        found: Places = passes * len(self._source) + self._chosen.start + numbers * self._chosen.step
        return found


class SlicedStream(StreamStage):
    """Some samples of a stream.

    Args:
        source: the stream.
        start: the number of the first sample.
        stop: the number after the last one; None for no end.
        step: the distance between two samples.
        label: names the operator.
        options: its options, as the user gave them.
    """

    def __init__(
        self,
        source: StreamStage,
        start: int,
        stop: int | None,
        step: int,
        label: str,
        options: Mapping[str, object],
    ) -> None:
        self.sources = (source,)
        self.source = source
        self.start, self.stop, self.step = start, stop, step
        self.fixed = options
        self.label = label
        self.is_endless = source.is_endless and stop is None
        self.is_sharded = source.is_sharded

    def count(self) -> int | None:
        count = self.source.count()
        if count is None:
            if not self.source.is_endless or self.stop is None:
                return None
            count = self.stop
        stop = count if self.stop is None else min(count, self.stop)
        return len(range(self.start, stop, self.step))

    def open(self, lap: Lap) -> Cursor:
        return _SliceCursor(self.source.open(lap), self)


class _SliceCursor(Cursor):
    def __init__(self, source: Cursor, stage: SlicedStream) -> None:
        self._source = source
        self._stage = stage
        self._taken = 0
        """Samples handed out so far, including those that failed."""
        self._at = 0
        """Where the source is."""

    def take(self, count: int) -> Samples:
        if not self._reach():
            return []
        return self._run(min(count, self._left()) if self._stage.step == 1 else 1)

    def _left(self) -> int:
        stage = self._stage
        if stage.stop is None:
            return 1 << 62
        return len(range(stage.start, stage.stop, stage.step)) - self._taken

    def _reach(self) -> bool:
        """Go to the next sample; False if the source ends before it, or nothing is left."""
        if self._left() <= 0:
            return False
        target = self._stage.start + self._taken * self._stage.step
        self._at += self._source.skip(target - self._at) if target > self._at else 0
        return self._at == target

    def _run(self, count: int) -> Samples:
        try:
            found = self._source.take(count)
        except Exception:
            self._at += 1
            self._taken += 1
            raise
        self._at += len(found)
        self._taken += len(found)
        return found

    def skip(self, count: int) -> int:
        count = min(count, self._left())
        if count <= 0 or not self._reach():
            return 0
        stage = self._stage
        past = self._source.skip((count - 1) * stage.step + 1)
        self._at += past
        skipped = -(-past // stage.step)
        self._taken += skipped
        return skipped

    def try_again(self) -> bool:
        if not self._source.try_again():
            return False
        self._at -= 1
        self._taken -= 1
        return True

    def state(self) -> CursorState:
        return {"source": self._source.state(), "taken": self._taken, "at": self._at}

    def restore(self, state: CursorState) -> None:
        self._source.restore(state["source"])
        self._taken, self._at = state["taken"], state["at"]
