"""Plans of iterable datasets: one stream without workers, or one that the loader shares out."""

from __future__ import annotations

from typing import Any

from feedline.order.plan import Plan
from feedline.randomness.keys import mix
from feedline.types import Draw, Share, Span, StreamSplit


class StreamPlan(Plan):
    """Asks for the next batch of the one stream there is.

    Args:
        count: samples of a batch; None for single samples.
        draw_key: from which the random numbers of the stream follow.
        share: this rank: what a stream yields may depend on it.
    """

    def __init__(self, count: int | None, draw_key: int, share: Share | None = None) -> None:
        self._count = count
        self._share = share or Share()
        self._draw = Draw(mix(draw_key, 0))

    def __next__(self) -> Any:
        return self._count

    def draw(self, ordinal: int) -> Draw:
        return self._draw

    def state(self, done: int) -> dict[str, Any]:
        return {"unit": "stream batches", "rank": [self._share.rank, self._share.world_size]}


class SpanPlan(Plan):
    """Steps through a stream that the loader shares out, one after the other, until it has ended.

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
