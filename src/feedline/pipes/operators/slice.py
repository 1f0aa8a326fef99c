"""`slice`, `take` and `skip`: some of the samples, by their number.

If the stream splits itself, its parts count as if they took turns: sample k of part p is number k * parts + p.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Lap, Places, Samples
from feedline.pipes.stage import MapStage, Reordered, StreamStage


class SlicedSamples(Reordered):
    """Some samples of a map-style stage; `chosen` has their numbers."""

    def __init__(self, source: MapStage, chosen: range, label: str, options: Mapping[str, object]) -> None:
        super().__init__(source, label, options)
        self._chosen = chosen

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
        super().__init__(source, label=label, fixed=options)
        self.start, self.stop, self.step = start, stop, step
        self.is_endless = source.is_endless and stop is None

    def count(self) -> int | None:
        count = self.parts[0].count()
        if count is None:
            if not self.parts[0].is_endless or self.stop is None:
                return None
            count = self.stop
        stop = count if self.stop is None else min(count, self.stop)
        return len(range(self.start, stop, self.step))

    def open(self, lap: Lap) -> Cursor:
        part = lap.part if self.is_sharded else (0, 1)
        return SliceCursor(self.parts[0].open(lap), *own_slice(part, self.start, self.stop, self.step))


def own_slice(own: tuple[int, int], start: int, stop: int | None, step: int = 1) -> tuple[int, int | None, int]:
    """Return start, stop and step of a slice in one part of a stream."""
    part, parts = own
    begin = max(0, -(-(start - part) // parts))
    end = None if stop is None else max(0, -(-(stop - part) // parts))
    first = next((at for at in range(begin, begin + step) if (at * parts + part - start) % step == 0), None)
    if first is None:  # the other parts have all of them
        return 0, 0, 1
    return first, end, step // math.gcd(step, parts)


class PartStage(StreamStage):
    """A stream that every worker of every rank reads, beside others that split themselves: each keeps its share."""

    def __init__(self, source: StreamStage) -> None:
        super().__init__(source)
        self.is_sharded = True

    @property
    def depth(self) -> int:
        return self.parts[0].depth

    def count(self) -> int | None:
        return self.parts[0].count()

    def open(self, lap: Lap) -> Cursor:
        part, parts = lap.part
        return SliceCursor(self.parts[0].open(replace(lap, worker=None, part=(0, 1))), part, None, parts)


class SliceCursor(Cursor):
    """Some samples of a cursor."""

    def __init__(self, source: Cursor, start: int, stop: int | None, step: int) -> None:
        self._source = source
        self._start, self._stop, self._step = start, stop, step
        self._taken = 0
        """Samples handed out so far, including those that failed."""
        self._at = 0
        """Where the source is."""

    def take(self, count: int) -> Samples:
        if not self._reach():
            return []
        return self._run(min(count, self._left()) if self._step == 1 else 1)

    def _left(self) -> int:
        if self._stop is None:
            return 1 << 62
        return len(range(self._start, self._stop, self._step)) - self._taken

    def _reach(self) -> bool:
        """Go to the next sample; False if the source ends before it, or nothing is left."""
        if self._left() <= 0:
            return False
        target = self._start + self._taken * self._step
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
        past = self._source.skip((count - 1) * self._step + 1)
        self._at += past
        skipped = -(-past // self._step)
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
