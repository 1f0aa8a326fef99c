"""Plans of iterable datasets: streams that are read unchanged, or one that the loader shards."""

from __future__ import annotations

from feedline.order.plan import Plan, Progress
from feedline.randomness.keys import mix
from feedline.system.ranks import Share
from feedline.types import Draw, Span, State, StreamSharding

_PLACES = 1 << 40
"""The distance between the keys of one rank's samples and the next rank's: more than a stream has samples."""


class StreamPlan(Plan):
    """Requests the next batch of a worker's stream, or of the loader's own without workers.

    Args:
        count: samples of a batch; None for single samples.
        draw_key: the key from which the random numbers of the streams are derived, with the worker and the rank.
        share: this rank, which the contents of a stream may depend on.
    """

    def __init__(self, count: int | None, draw_key: int, share: Share | None = None) -> None:
        self._count = count
        self._share = share or Share()
        self._draw_key = draw_key

    def __next__(self) -> object:
        return self._count

    def draw(self, ordinal: int) -> Draw:
        return self.draw_of(0)

    def draw_after(self, progress: Progress) -> Draw:
        count = progress.delivered + progress.streamed()
        return Draw(self._draw_key, self._share.rank * _PLACES + count)

    def draw_of(self, worker: int) -> Draw:
        """Return the source of random numbers for a worker's stream."""
        return Draw(mix(self._draw_key, worker), self._share.rank * _PLACES)

    def state(self, done: int) -> dict[str, object]:
        return {"unit": "stream batches", **self.after()}

    def after(self) -> dict[str, object]:
        return {"rank": [self._share.rank, self._share.world_size]}


class SpanPlan(Plan):
    """Consecutive steps through a stream that the loader shards, until the stream ends.

    Args:
        sharding: how the stream is sharded.
        draw_key: the key from which the random numbers of its samples are derived.
        consumed: samples of the stream that all ranks together have consumed already.
    """

    def __init__(self, sharding: StreamSharding, *, draw_key: int = 0, consumed: int = 0) -> None:
        self._stride = sharding.batch_size * sharding.share.world_size
        self._rank = sharding.share.rank
        self._draw_key = draw_key
        self._consumed = consumed
        self._number = 0

    def __next__(self) -> object:
        self._number += 1
        return Span(self._number - 1, self._consumed)

    def draw(self, ordinal: int) -> Draw:
        return Draw(self._draw_key)

    def draw_after(self, progress: Progress) -> Draw:
        first = self._consumed + (progress.delivered - 1) * self._stride
        return Draw(self._draw_key, first + self._rank)

    def state(self, done: int) -> State:
        return {"unit": "stream samples", "consumed": self._consumed + done * self._stride}
