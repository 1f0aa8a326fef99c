"""Ranks that end an epoch together, although none of them knows how many batches the others have.

Every rank reads its own shards, of any size. A rank that had one batch more than another would wait forever in the
collective of its training step. So ranks agree before they deliver batches: each reports how many it has ready, and all
deliver the smallest of these numbers before the next exchange. An exchange is one all-reduce of four numbers. It covers
as many steps as the slowest rank has batches ready; without workers, a single step.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from feedline.delivery.driver.caller_lock import OneCallerBatches
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.errors import BadOption
from feedline.order.plan import Progress
from feedline.system.ranks import Share
from feedline.types import Position

if TYPE_CHECKING:
    from feedline.delivery.driver.batches import WorkerBatches
    from feedline.delivery.driver.inline_batches import InlineBatches

_NOTHING = object()


class EndOfEpochSync(Iterator[Any]):
    """Delivers the batches of an iteration for as long as all ranks have some.

    Used from the training loop's thread only: that is where the collectives of its own steps are called.

    Args:
        source: the batches of this rank.
        batches: the same, before they are prepared for a device. Their checkpoint says which were delivered.
        fault_budget: counts samples that fail.
        share: this rank, and the tail: "drop" ends when the first rank runs out of batches, "pad" when the last one
            does; until then the other ranks repeat their first batch.
    """

    def __init__(
        self, source: OneCallerBatches, batches: InlineBatches | WorkerBatches, fault_budget: FaultBudget, share: Share
    ) -> None:
        self._source = source
        self._batches = batches
        self._fault_budget = fault_budget
        self._share = share
        self._pads = share.tail == "pad"
        self._group = _group(share)
        self.begin()

    def begin(self) -> None:
        """Begin another epoch."""
        self._agreed = 0
        """Batches to deliver before the next exchange between ranks."""
        self._has_none = False
        """True if this rank has run out of batches."""
        self._is_over = False
        # object: whatever the collate function returns.
        self._taken: object = _NOTHING
        """A batch that was taken, and is delivered once the ranks have agreed."""
        self._after = Progress()
        """The progress of the epoch after it. Until it is delivered, a saved state has that before it."""
        self._live: Callable[[], Position] | None = None
        """See `Checkpoint.live`."""
        self._first: object = _NOTHING
        """A copy of this rank's first batch, or of another rank's if this one has none."""

    @property
    def leaving(self) -> bool:
        """True once the iterator was closed."""
        return self._source.leaving

    def close(self) -> None:
        """End the iteration of this rank; see `OneCallerBatches.close`."""
        self._source.close()

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        if self._agreed:
            batch = self._source.__next__()
            self._agreed -= 1
            return batch
        if not self._has_none and self._taken is _NOTHING:
            self._take()
        if self._pads and self._first is _NOTHING and not self._has_none:
            self._first = copy.deepcopy(self._taken)
        least, most = self._ask(0 if self._has_none else 1 + self._source.ready_count())
        checkpoint = self._batches.checkpoint
        if most == 0 or (least == 0 and not self._pads):
            self._taken, self._is_over, self._after.ended = _NOTHING, True, True
            checkpoint.live, checkpoint.entry.progress = self._live, self._after
            raise StopIteration
        self._agreed = max(0, least - 1)
        if self._has_none:
            return copy.deepcopy(self._first)
        batch, self._taken = self._taken, _NOTHING
        # From here on nothing is called, so no signal handler runs: see `feedline.delivery.driver.caller_lock`.
        checkpoint.live, checkpoint.entry.progress = self._live, self._after
        return batch

    def _take(self) -> None:
        """Take a batch of this rank, if it has one."""
        self._batches.apply_pending()  # the epoch may have to be started again
        checkpoint = self._batches.checkpoint
        entry, live, after = checkpoint.entry, checkpoint.live, checkpoint.entry.progress
        before = after.copy()
        before.faults = before.faults or self._fault_budget.mark()
        if live is not None:
            position = live().copied()
            checkpoint.live = lambda: position
        entry.progress, self._live = before, live
        try:
            self._taken = self._source.__next__()
        except StopIteration:
            if self._source.leaving:
                raise
            self._has_none = True
        except BaseException:
            checkpoint.live, entry.progress = live, after if entry.progress is before else entry.progress
            raise
        # Batches on a device replace the progress with that of each batch; others change it.
        self._after, entry.progress = after if entry.progress is before else entry.progress, before

    def _ask(self, count: int) -> tuple[int, int]:
        """Return the smallest and the largest number of batches of all ranks; blocks until all have reported."""
        torch = sys.modules["torch"]
        rank, world_size = self._share.rank, self._share.world_size
        lacks = self._pads and self._first is _NOTHING
        numbers = torch.tensor([count, -count, -int(lacks), world_size if lacks else rank])
        torch.distributed.all_reduce(numbers, torch.distributed.ReduceOp.MIN, group=self._group)
        least, less_most, some_lack, giver = numbers.tolist()
        if least == 0 and less_most and some_lack:
            batches = [self._first if rank == giver else None]
            torch.distributed.broadcast_object_list(batches, giver, group=self._group)
            self._first = batches[0] if lacks else self._first
        return least, -less_most


# object: a torch process group.
def _group(share: Share) -> object:
    """Return a group of all ranks for tensors in CPU memory; None for the default group."""
    group = getattr(sys.modules.get("torch"), "distributed", None)
    if group is None or not group.is_available() or not group.is_initialized():
        raise BadOption(
            f"shard={share.tail!r} lets {share.world_size} ranks end together, although the dataset splits itself. "
            "They agree on the end through torch.distributed, which is not initialised. Call "
            "torch.distributed.init_process_group() before the first iteration, or drop shard= and stop all ranks "
            "after the same number of steps."
        )
    return _group_beside(group.group.WORLD)


@functools.lru_cache(maxsize=1)
def _group_beside(world: object) -> object:
    distributed = sys.modules["torch"].distributed
    return None if "gloo" in str(distributed.get_backend(world)) else distributed.new_group(backend="gloo")
