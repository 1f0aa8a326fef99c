"""The plan of an iterable dataset without workers: the same request over and over."""

from __future__ import annotations

from typing import Any

from feedline.order.plan import Plan
from feedline.randomness.keys import mix
from feedline.types import Draw, Share


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
        return {"unit": "stream batches", **self.after()}

    def after(self) -> dict[str, Any]:
        return {"rank": [self._share.rank, self._share.world_size]}
