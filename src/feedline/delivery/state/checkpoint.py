"""The position of one iteration of a loader, from which its state is saved even after its workers have exited."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from feedline.delivery.state import Snapshot
from feedline.order.order import Entry, Order
from feedline.order.plan import Plan
from feedline.types import Position, State


@dataclass
class Checkpoint:
    """The position of one iteration of a loader.

    It has the plan of the iteration until `freeze`.
    """

    order: Order
    entry: Entry
    draw_seed: int
    worker_count: int
    batch_size: int
    dataset_epoch: int | None = None
    """The epoch that the dataset's `set_epoch` was last called with before the first batch."""
    keeps_dataset: bool = True
    """False if the workers, and their copies of the dataset with them, end with the epoch."""
    keeps_last: bool = True
    """False if nothing outlives an iterator of the dataset: see `repeats_itself`."""
    live: Callable[[], Position] | None = None
    """Returns the current position, if the training process makes the batches itself and it has a state."""
    _expected: State | None = None
    """What the order expects of a state, once it was asked for."""
    _plan_state: dict[str, object] = field(default_factory=dict)
    """The last state of the plan, once the plan is gone."""
    _plan_after: dict[str, object] = field(default_factory=dict)
    """What the plan leaves to the next epoch, once it is gone."""

    def __post_init__(self) -> None:
        self.plan: Plan | None = self.order.plan(self.entry)

    def batch_count(self) -> int:
        """Return how many batches of the epoch this rank has had, including those before the iteration."""
        size, _, ranks = self.order.stride()
        return -(-self.entry.consumed // ((size or 1) * ranks)) + self.entry.progress.count()

    def next_epoch(self) -> int:
        """Return the epoch after this one, or after all that an endless order has begun."""
        size, _, ranks = self.order.stride()
        progress = self.entry.progress
        reached = max([progress.delivered, *(ordinal + 1 for ordinal in progress.early)])
        return self.entry.key.epoch + self.order.passes(self.entry.consumed + reached * (size or 1) * ranks)

    def freeze(self) -> None:
        """Keep the states of plan and dataset, and release the iterators of sampler and dataset, which end here."""
        if self.plan is None:
            return
        try:
            progress = self.entry.progress
            self._plan_state = {} if progress.ended else self.plan.last_state(progress.delivered)
            self._plan_after = self.plan.after()  # a framework may say later that the epoch has ended
            last = None if self.live is None else self.live().copied()
        except Exception:
            return  # the user's `state_dict` raised: `snapshot` will call it again and raise
        self.live = None if last is None else lambda: last
        self.plan = None

    def _state_of_plan(self) -> State:
        progress = self.entry.progress
        if self.plan is None:
            return self._plan_after if progress.ended else self._plan_state
        return self.plan.after() if progress.ended else self.plan.state(progress.delivered)

    def _expects(self) -> State:
        if self._expected is None:
            self._expected = self.order.expected()
        return self._expected

    def snapshot(self) -> Snapshot:
        """Return the position of the iteration. Calls the user's own stateful objects, but not the workers."""
        key, progress = self.entry.key, self.entry.progress
        snapshot = Snapshot(key.epoch, seed=key.seed, draw_seed=self.draw_seed, dataset_epoch=self.dataset_epoch)
        if progress.ended:
            order = {**self._expects(), **self._state_of_plan()}
            return replace(snapshot, ended=True, order=order, streams=self.outlasting())
        order = {**self._state_of_plan(), **self._expects()}
        positions = self._positions()
        if self.order.unit == "stream samples":  # all workers read the same stream
            # Near its end, workers know better than the plan how many samples are consumed.
            known = [position.read for position in positions if position.read is not None]
            order["consumed"] = consumed = min([order["consumed"], *([max(known)] if known else [])])
            positions = [replace(_furthest(positions, consumed), read=None)]
        if self.order.unit != "stream batches" and not any(position.has_state for position in positions):
            positions = []
        if progress.early:  # batches are identified by their numbers
            order["stride"] = list(self.order.stride())
        return replace(
            snapshot,
            order=order,
            early=tuple(sorted(ordinal - progress.delivered for ordinal in progress.early)),
            streams=tuple(position.copied() for position in positions),
            turn=self._turn(),
        )

    def _turn(self) -> int:
        """Return the number of the worker whose turn is next."""
        progress = self.entry.progress
        if self.order.unit == "stream batches" or not self.worker_count:
            return progress.turn
        return (progress.turn + progress.delivered) % self.worker_count

    def _positions(self) -> list[Position]:
        """Return the position of every worker, or that of an iteration without workers."""
        progress = self.entry.progress
        if self.worker_count:
            if self.order.unit != "stream batches" and not progress.positions:
                return []
            return [progress.positions.get(worker, Position()) for worker in range(self.worker_count)]
        position = Position() if self.live is None else self.live()
        if self.order.unit == "stream batches":
            return [replace(position, batches=progress.delivered, read=progress.read)]
        return [position]

    def outlasting(self) -> tuple[Position, ...]:
        """Return where the next epoch begins: the states that outlive this one, which has ended or was left."""
        progress = self.entry.progress
        positions = self._positions() if self.keeps_dataset else []
        if self.order.unit == "stream samples" and self.keeps_dataset:
            # Only a worker that was asked for more has run the stream to its end.
            outcome = progress.outcome if progress.ended else None
            positions = [_furthest(positions) if outcome is None else outcome]
        is_over = progress.ended or not self.order.unit.startswith("stream")
        found = [position.next_epoch(ended=is_over or position.ended) for position in positions]
        if not self.keeps_last:
            found = [replace(position, iterator=None) for position in found]
        if not any(position.has_state for position in found):
            return ()
        return tuple(position.copied() for position in found)


def _furthest(positions: list[Position], most: float = math.inf) -> Position:
    """Return the last position with a state that is not beyond a number of samples; one without a state if none is."""
    usable = [position for position in positions if position.has_state and position.place <= most]
    return max(usable, key=operator.attrgetter("place"), default=Position())
