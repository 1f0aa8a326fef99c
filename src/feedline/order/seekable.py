"""Plans for feedline's own samplers: they can start at any position, at no cost."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.sampler import BatchSampler, Sampler
from feedline.order.plan import Plan
from feedline.randomness.keys import mix
from feedline.samplers.steps import Steps
from feedline.system.ranks import Share
from feedline.types import Draw, IndexBlock, Key, State

_BLOCK = 1 << 14
"""Indices made at a time. Enough for the vectorised samplers to be quick, few enough to stay in the cache."""

_NO_INDICES: NDArray[np.int64] = np.empty(0, np.int64)

_WHOLE = Share()
"""The share of the only rank."""

_FIRST_BLOCK = 1 << 10
"""Indices made for the first batches: few, because training is waiting for them."""


class SamplePlan(Plan):
    """Batches cut from the order of a sampler.

    Args:
        sampler: the order; for a distributed sampler, this rank's part of it.
        batch_size: samples of a batch; None for single samples.
        drop_last: True to leave out a last batch that is not full.
        key: of the epoch's order.
        draw_key: the key from which the random numbers of its samples are derived.
        consumed: positions of the whole order that all ranks together have consumed already.
    """

    goes_ahead = True

    def __init__(
        self,
        sampler: Sampler,
        batch_size: int | None,
        *,
        drop_last: bool,
        key: Key,
        draw_key: int = 0,
        consumed: int = 0,
    ) -> None:
        self._whole = sampler.whole()
        self._share = sampler.share or _WHOLE
        self._single = batch_size is None
        self._batch_size = batch_size or 1
        self._key = key
        self._draw_key = draw_key
        self._consumed = consumed
        self._size = self._whole.size()
        left = None if self._size is None else max(0, self._size - consumed)
        self._steps = Steps(left, self._batch_size, self._share, drop_last=drop_last and not self._single)
        self._stride = self._batch_size * self._share.world_size
        self._even = self._steps.even
        self._number = 0
        self._block = _NO_INDICES
        self._cursor = 0

    def __next__(self) -> Any:
        start = self._cursor
        stop = start + self._batch_size
        if stop > len(self._block):
            return self._next_of_another_block()
        self._cursor = stop
        self._number += 1
        return int(self._block[start]) if self._single else IndexBlock(self._block[start:stop])

    def _next_of_another_block(self) -> object:
        steps, number, size = self._steps, self._number, self._batch_size
        if steps.count is not None and number >= steps.count:
            raise StopIteration
        count = min((_BLOCK if number else _FIRST_BLOCK) // size, self._even - number)
        if count >= 1:
            first = number * size
            rank, ranks = self._share.rank, self._share.world_size
            stop = first + int(count) * size
            self._block = self._indices(np.arange(first * ranks + rank, stop * ranks + rank, ranks, dtype=np.int64))
            self._cursor = 0
            return next(self)
        self._number += 1
        indices = self._indices(steps.own(number))
        return int(indices[0]) if self._single else IndexBlock(indices)

    def _indices(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        if self._consumed:
            places = places + self._consumed
        if self._size is not None and len(places) and places[-1] >= self._size:
            places = places % self._size  # the tail is padded with the beginning
        return self._whole.at(places, self._key).copy()  # a user's own sampler may reuse the array

    def draw(self, ordinal: int) -> Draw:
        start = ordinal * self._stride if ordinal < self._even else self._steps.start(ordinal)
        first = self._consumed + start + self._share.rank
        return Draw(self._draw_key, first, self._share.world_size)

    def state(self, done: int) -> State:
        consumed = self._consumed + self._steps.start(done)
        if self._size is not None:
            consumed = min(consumed, self._size)
        return {"unit": "samples", "consumed": consumed}


class BatchPlan(Plan):
    """The batches of a batch sampler.

    Args:
        sampler: the order of batches; for a distributed one, this rank's part of it.
        key: of the epoch's order.
        draw_key: the key from which the random numbers of its samples are derived.
        consumed: batches of the whole order that all ranks together have consumed already.
    """

    goes_ahead = True

    def __init__(self, sampler: BatchSampler, *, key: Key, draw_key: int = 0, consumed: int = 0) -> None:
        self._whole = sampler.whole()
        self._share = sampler.share or _WHOLE
        self._own = sampler.resumed(consumed) if consumed else sampler
        self._own.check(key)
        self._key = key
        self._draw_key = draw_key
        self._consumed = consumed
        self._count = self._own.size()
        self._number = 0

    def __next__(self) -> IndexBlock:
        if self._count is not None and self._number >= self._count:
            raise StopIteration
        self._number += 1
        return IndexBlock(self._own.batch(self._number - 1, self._key).copy())  # as above

    def draw(self, ordinal: int) -> Draw:
        number = self._consumed + ordinal * self._share.world_size + self._share.rank
        return Draw(mix(self._draw_key, number))

    def state(self, done: int) -> dict[str, object]:
        consumed = self._consumed + done * self._share.world_size
        size = self._whole.size()
        if size is not None:
            consumed = min(consumed, size)
        return {"unit": "batches", "consumed": consumed}
