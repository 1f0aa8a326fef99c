"""The plan of an iterable dataset that the loader shares out: step after step, until the stream has ended."""

from __future__ import annotations

from typing import Any

from feedline.order.plan import Plan
from feedline.types import Draw, Span, StreamSplit


class SpanPlan(Plan):
    """Steps through a stream.

    Args:
        split: how it is shared out.
        draw_key: from which the random numbers of its samples follow.
        consumed: samples of the stream that all ranks together have consumed already.
    """

    can_move = False  # a worker's stream cannot go back to where another worker's was

    def __init__(self, split: StreamSplit, *, draw_key: int = 0, consumed: int = 0) -> None:
        self._stride = split.batch_size * split.share.world_size
        self._draw_key = draw_key
        self._consumed = consumed
        self._number = 0

    def __next__(self) -> Any:
        self._number += 1
        return Span(self._number - 1, self._consumed)

    def draw(self, ordinal: int) -> Draw:
        return Draw(self._draw_key)

    def state(self, done: int) -> dict[str, Any]:
        return {"unit": "stream samples", "consumed": self._consumed + done * self._stride}
