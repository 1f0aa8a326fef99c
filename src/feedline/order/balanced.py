"""The plan of `samplers.BalancedBatches`, whose batches depend on the number of ranks."""

from __future__ import annotations

from feedline.order.plan import Plan
from feedline.randomness.keys import mix
from feedline.samplers.windows import Windows
from feedline.types import Draw, IndexBlock, State


class BalancedPlan(Plan):
    """The batches of one rank, from a position on.

    Args:
        windows: the samples that are left.
        rank: this rank.
        draw_key: the key from which the random numbers of samples are derived.
        skipped: steps to skip.
    """

    goes_ahead = True

    def __init__(self, windows: Windows, rank: int, *, draw_key: int = 0, skipped: int = 0) -> None:
        self._windows = windows
        self._rank = rank
        self._draw_key = draw_key
        self._skipped = self._number = skipped

    def __next__(self) -> IndexBlock:
        batch = self._windows.batch(self._number, self._rank)
        if batch is None:
            raise StopIteration
        self._number += 1
        return IndexBlock(batch)

    def draw(self, ordinal: int) -> Draw:
        # Each rank has at least one sample in a step, so no other batch has this number, whatever the number of ranks.
        return Draw(mix(self._draw_key, self._windows.samples_before(self._skipped + ordinal) + self._rank))

    def state(self, done: int) -> State:
        return {"unit": "balanced samples", **self._windows.state(self._skipped + done)}
