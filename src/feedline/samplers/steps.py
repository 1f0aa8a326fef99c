"""Steps: how the ranks go through one order together.

In step k the ranks consume the positions from `start(k)` to `start(k + 1)` of the common order: rank r takes those at
distance r, r + N, ... from the beginning. So after any number of steps the ranks have consumed a prefix of the order,
and a different number of ranks can continue from there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from feedline.errors import BadOption
from feedline.system.ranks import Share


class Steps:
    """The steps through an order.

    Args:
        total: number of positions in the order; None if it never ends.
        batch_size: positions of one rank in one step.
        share: the rank whose steps these are.
        drop_last: True to leave out a last step that is not full.

    Raises:
        BadOption: with the tail "exact", the last step cannot give every rank a sample.

    Example:
        >>> steps = Steps(10, 2, Share(1, 2), drop_last=False)
        >>> [steps.own(number).tolist() for number in range(steps.count)]
        [[1, 3], [5, 7], [9]]
    """

    def __init__(self, total: int | None, batch_size: int, share: Share, *, drop_last: bool) -> None:
        self._share = share
        self._batch_size = batch_size
        self._stride = batch_size * share.world_size
        self.count: int | None = None
        """How many steps there are; None if they never end."""
        self._end = 0
        self._last_start: int | None = None
        if total is None:
            return
        world_size = share.world_size
        if share.tail == "exact" and world_size > 1:
            self._end = total
            self.count = -(-total // self._stride)
            self._check_exact(total, drop_last=drop_last)
            self._last_start = min((self.count - 1) * self._stride, total - world_size)
            return
        per_rank = share.count(total)
        self.count = per_rank // batch_size if drop_last else -(-per_rank // batch_size)
        self._end = min(per_rank * world_size, self.count * self._stride)

    def _check_exact(self, total: int, *, drop_last: bool) -> None:
        world_size = self._share.world_size
        if drop_last:
            raise BadOption(
                "drop_last=True leaves samples out, but tail='exact' promises every sample once. Drop one of the two."
            )
        if total and total < (self.count or 0) * world_size:
            raise BadOption(
                f"tail='exact' is not possible: the last of {self.count} steps would have no sample for some of the "
                f"{world_size} ranks ({total} samples, batch size {self._batch_size}). Use a batch size of 2 or more "
                "and at least as many samples as ranks, or tail='pad' or 'drop'."
            )

    def start(self, number: int) -> int:
        """Return how many positions of the order all ranks have consumed before step `number`."""
        if self.count is None:
            return number * self._stride
        if number >= self.count:
            return self._end
        if number == self.count - 1 and self._last_start is not None:
            return self._last_start
        return number * self._stride

    @property
    def even(self) -> float:
        """How many of the first steps are full, so that a rank's own positions in them are evenly spaced throughout."""
        if self.count is None:
            return float("inf")
        return max(0, self.count - (1 if self._last_start is None else 2))

    def own(self, number: int) -> NDArray[np.int64]:
        """Return this rank's positions in a step. With the tail "pad" they may lie beyond the end of the order."""
        start = self.start(number) + self._share.rank
        return np.arange(start, self.start(number + 1), self._share.world_size, dtype=np.int64)
