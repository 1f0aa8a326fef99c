"""`balance`: samples reordered within windows, so that the batches of a step cost the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedline.errors import BadOption
from feedline.pipes.cursor import Cursor
from feedline.pipes.lap import Lap, Places, Samples
from feedline.pipes.operators.shuffle import Failed, WindowCursor
from feedline.pipes.stage import StreamStage
from feedline.randomness.keys import epoch_key, mix, mix_array
from feedline.samplers.dealing import deal, rounded
from feedline.system.failures import add_note
from feedline.types import is_finite

# Any: a sample. object: any kind of number, which is checked.
Cost = Callable[[Any], object]


@dataclass(frozen=True)
class BalanceOptions:
    """How samples are reordered; see `Pipe.balance`."""

    cost: Cost
    batch_size: int
    ranks: int
    window: int
    seed: int

    @property
    def fixed(self) -> dict[str, object]:
        """The options that determine which sample is at which position."""
        return {"batch_size": self.batch_size, "ranks": self.ranks, "window": self.window, "seed": self.seed}

    @property
    def size(self) -> int:
        """Samples of a window."""
        return self.batch_size * self.ranks * self.window

    def __str__(self) -> str:
        ranks = "" if self.ranks == 1 else f", ranks={self.ranks}"
        return f"balance(batch_size={self.batch_size}{ranks}, window={self.window}, seed={self.seed})"

    def priced(self, sample: object) -> float:
        """Return what a sample costs. Raises BadOption if that is not a number from 0 on."""
        try:
            cost = self.cost(sample)
        except Exception as exc:
            add_note(exc, f"cost= of {self} raised this.")
            raise
        if isinstance(cost, np.ndarray) and cost.ndim == 0:
            cost = cost.item()
        if not is_finite(cost) or cost < 0:
            raise BadOption(f"cost= of {self} returned {cost!r} for a sample. Costs are finite numbers, 0 or more.")
        return float(cost)


class BalancedStream(StreamStage):
    """The samples of a stream, reordered within windows.

    A sample that fails, or whose cost does, costs nothing, and takes up a place.
    """

    depends_on_epoch = True

    def __init__(self, source: StreamStage, options: BalanceOptions) -> None:
        super().__init__(source, label=str(options), fixed=options.fixed)
        self._options = options

    def count(self) -> int | None:
        return self.parts[0].count()

    def open(self, lap: Lap) -> Cursor:
        return WindowCursor(self.parts[0].open(lap), self._options.size, self._order, lap)

    def _order(self, window: Samples, lap: Lap, number: int) -> Places:
        """Return the samples of a window in their new order; replaces those whose cost fails."""
        options, costs = self._options, np.zeros((len(window), 1))
        for place, sample in enumerate(window):
            if type(sample) is not Failed:
                try:
                    costs[place] = options.priced(sample)
                except Exception as exc:  # raised in place of the sample
                    window[place] = Failed(exc)
        key = mix(mix(epoch_key(options.seed, lap.epoch), lap.number), number)
        in_step = options.batch_size * options.ranks
        steps = len(window) // in_step
        order = np.arange(len(window))
        if steps:
            rows = deal(rounded(costs[: steps * in_step]), steps * options.ranks, options.ranks)
            # `deal` sorts batches by cost: steps, and the ranks of a step, come in random order.
            by_step = np.argsort(mix_array(mix(key, 0), np.arange(steps)))
            by_rank = np.argsort(mix_array(mix(key, 1), np.arange(len(rows))).reshape(steps, options.ranks), axis=1)
            batches = rows.reshape(steps, options.ranks, options.batch_size)
            batches = np.take_along_axis(batches, by_rank[:, :, None], axis=1)[by_step]
            # The ranks of a loader take the samples of a step in turn.
            order[: steps * in_step] = batches.transpose(0, 2, 1).reshape(-1)
        return order
