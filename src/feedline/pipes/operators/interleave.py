"""`interleave`: one sample of each dataset in turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import CursorState, Lap, Places
from feedline.pipes.operators.concat import JoinedStream
from feedline.pipes.stage import StreamStage
from feedline.pipes.weaving import TurnsCursor


class Interleaved(JoinedStream):
    """Streams that take turns; one that has ended is left out from then on."""

    def __init__(self, sources: tuple[StreamStage, ...]) -> None:
        super().__init__(sources, "interleave")

    def open(self, lap: Lap) -> Cursor:
        return _InterleaveCursor(self.parts, lap)


class _InterleaveCursor(TurnsCursor):
    def __init__(self, parts: tuple[StreamStage, ...], lap: Lap) -> None:
        super().__init__(parts, replace(lap, is_followed=True))
        self._live = list(range(len(parts)))
        self._since = 0
        """The position at which the first of them has its turn."""

    def _turns(self, start: int, count: int) -> Places:
        live = np.array(self._live)
        found: Places = live[np.arange(start - self._since, start - self._since + count) % len(live)]
        return found

    def _end_of(self, number: int) -> bool:
        place = self._live.index(number)
        self._live = self._live[place + 1 :] + self._live[:place]
        self._since = self._at
        return bool(self._live)

    def state(self) -> CursorState:
        return {**super().state(), "live": list(self._live), "since": self._since}

    def restore(self, state: CursorState) -> None:
        super().restore(state)
        self._live, self._since = list(state["live"]), state["since"]
