"""The plan of an iterable dataset that is read as it is: the same request over and over."""

from __future__ import annotations

from typing import Any

from feedline.order.plan import Plan
from feedline.randomness.keys import mix
from feedline.types import Draw, Share

_PLACES = 1 << 40
"""The keys of a rank's samples lie so far from those of the next one: more than a stream has samples."""


class StreamPlan(Plan):
    """Asks for the next batch of the stream that a worker has, or the loader without workers.

    Args:
        count: samples of a batch; None for single samples.
        draw_key: from which the random numbers of the streams follow, with the worker and the rank.
        share: this rank: what a stream yields may depend on it.
    """

    def __init__(self, count: int | None, draw_key: int, share: Share | None = None) -> None:
        self._count = count
        self._share = share or Share()
        self._draw_key = draw_key

    def __next__(self) -> Any:
        return self._count

    def draw(self, ordinal: int) -> Draw:
        return self.draw_of(0)

    def draw_of(self, worker: int) -> Draw:
        """Return where the random numbers of a worker's stream come from."""
        return Draw(mix(self._draw_key, worker), self._share.rank * _PLACES)

    def state(self, done: int) -> dict[str, Any]:
        return {"unit": "stream batches", **self.after()}

    def after(self) -> dict[str, Any]:
        return {"rank": [self._share.rank, self._share.world_size]}
