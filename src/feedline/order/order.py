"""Which batches a loader delivers, and how to enter such an order: at the beginning, or at a saved position.

An order lasts across epochs and makes a plan for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from feedline.abc.sampler import BatchSampler, Sampler
from feedline.errors import BadState
from feedline.order.plan import Plan, Progress
from feedline.order.seekable import BatchPlan, SamplePlan
from feedline.samplers.steps import Steps
from feedline.system.ranks import Share, share_if_known
from feedline.types import Key, State, StreamSharding

if TYPE_CHECKING:
    from feedline.order.balanced import BalancedPlan
    from feedline.order.streams import SpanPlan, StreamPlan
    from feedline.samplers.balanced import BalancedBatches

_WHOLE = Share()
"""The share of the only rank."""


@dataclass
class Entry:
    """The position at which an epoch is entered, and how far the training loop is in it."""

    key: Key
    """The key of its order."""
    draw_key: int
    """The key from which the random numbers of its samples are derived."""
    order: State = field(default_factory=dict)
    """The `order` of a snapshot; empty at the beginning."""
    progress: Progress = field(default_factory=Progress)

    @property
    def consumed(self) -> int:
        """How far the order was consumed before, in its unit."""
        return int(self.order.get("consumed", 0))


class Order(ABC):
    """Which batches a loader delivers."""

    sampler: Sampler | BatchSampler | None = None
    """The sampler whose epochs the loader numbers: one of feedline's."""
    unit: str
    """What its plans count; see `Plan.state`."""
    endless = False
    """True if it begins again when it is exhausted."""
    skips = 0
    """Batches to skip at the beginning of every epoch."""
    drawing: Callable[[], AbstractContextManager[None]] = nullcontext
    """Entered while a third-party sampler draws the beginning of an epoch."""

    def anew(self) -> Order | None:
        """Return the order for another iteration over the same samplers; None if it has to be made anew."""
        return None

    def followers(self) -> list[Sampler | BatchSampler]:
        """Return feedline's samplers inside a third-party one: they follow the loader's seed and its epochs."""
        return []

    def made_of(self) -> tuple[State, tuple[object, ...]]:
        """Return what an epoch that is drawn now follows from: values, and objects that may be replaced."""
        return self.expected(), ()

    def epoch_set_by_user(self) -> int | None:
        """Return the epoch set by `set_epoch()` since the sampler's last order began, None if it was not called."""
        sampler = self.sampler
        return None if sampler is None or not sampler.epoch_was_set else sampler.epoch

    def is_stale(self) -> bool:
        """True if `set_epoch()` was called after this order started."""
        return False

    def mark_epoch_begun(self, epoch: int) -> None:
        """Set the epoch that has begun on the sampler, and reset its note of a `set_epoch()` call."""
        if self.sampler is not None:
            self.sampler.epoch = epoch
            self.sampler.epoch_was_set = False

    def seed_for(self, default: int | None) -> int | None:
        """Return the seed of an epoch that begins now: the sampler's own, else `default`, else one that it draws."""
        sampler = self.sampler
        if sampler is None:
            return default
        seed = sampler.whole().seed
        if seed is not None:
            return seed
        if sampler.generator is not None and sampler.loader_seed is None:  # given by the user: it decides
            return sampler.draw_seed()
        if default is not None:
            return default
        return 0 if self.stride()[2] > 1 else sampler.draw_seed()  # ranks that each drew one would not share one order

    def common_seed(self) -> int | None:
        """Return a seed for the samples' random numbers if ranks must share one and none was given, else None."""
        return None

    def draw_next(self) -> State:
        """Draw now what the next epoch would draw, and return what its plan needs."""
        return {}

    def state_after(self, batches: int) -> State:
        """Return the position in a snapshot's `order` after this many batches of this rank."""
        return {"consumed": batches}

    def size(self) -> int | None:
        """Return the largest value that a snapshot's `consumed` may have; None if there is no limit."""
        return None if self.sampler is None else self.sampler.whole().size()

    def prepare(self, order: dict[str, object]) -> None:  # noqa: B027  most orders have nothing to prepare
        """Do what torch does when an iterator is made: request a third-party sampler's iterator."""

    def length(self) -> int | None:
        """Return how many batches an epoch has, if ranks have shares of the order; None to count as torch does."""
        return None

    def without_end(self, share: Share) -> Order | None:
        """Return an order that starts another epoch whenever one is exhausted; None if that is not possible.

        Args:
            share: this rank, for an order that is not distributed yet.
        """
        return None

    def passes(self, consumed: int) -> int:
        """Return how many epochs have begun when this much of the order is consumed: an endless order has many."""
        return 1

    @abstractmethod
    def plan(self, entry: Entry) -> Plan:
        """Return the plan of an epoch."""

    @abstractmethod
    def expected(self) -> State:
        """Return the entries that a snapshot's `order` must have to fit."""

    def stride(self) -> tuple[int | None, int, int]:
        """Return (batch size, rank, number of ranks), which must match where a state identifies batches by number."""
        return None, 0, 1

    def check(self, order: State) -> None:
        """Check that a snapshot's `order` fits this one.

        Raises:
            BadState: it does not fit.
        """
        if not order:
            return
        expected = self.expected()
        if "stride" in order and self.endless == bool(order.get("endless")):  # an endless order gets its ranks later
            expected["stride"] = list(self.stride())
        size = self.size()
        if size is not None and not order.get("endless") and order.get("consumed", 0) > size:
            raise BadState(f"The state says that {order['consumed']} {order['unit']} of {size} were consumed.")
        wrong = {name: order.get(name) for name, value in expected.items() if order.get(name) != value}
        if not wrong:
            return
        raise BadState(
            f"The state was saved by a loader with another order: {_describe(wrong)}, and here "
            f"{_describe(expected, wrong)}. A state fits the data, the sampler or shuffle=, the use of seed= and the "
            "kind of batches it was saved with; the number of workers, the engine and, with feedline's samplers, the "
            "batch size and the number of ranks may differ. A checksum stands for weights, lengths or labels; with a "
            "stride, batches had been delivered out of order."
        )


def _describe(values: dict[str, object], only: dict[str, object] | None = None) -> str:
    parts = []
    for name, value in values.items():
        if only is None or name in only:
            value = ", ".join(f"{k}={v!r}" for k, v in value.items()) if isinstance(value, dict) else repr(value)
            parts.append(f"{name}: {value}")
    return "; ".join(parts)


class SamplerOrder(Order):
    """The common base of the orders of feedline's samplers and batch samplers."""

    sampler: Sampler | BatchSampler
    _planned: Sampler | BatchSampler
    """The sampler that plans use: the sampler itself, or its endless form."""
    _batch_size: int | None = None

    def stride(self) -> tuple[int | None, int, int]:
        share = self._planned.share or _WHOLE
        return self._batch_size, share.rank, share.world_size

    def state_after(self, batches: int) -> State:
        batch_size, _, world_size = self.stride()
        size = self.size()
        place = batches * (batch_size or 1) * world_size
        return {"consumed": place if size is None else min(place, size)}

    def passes(self, consumed: int) -> int:
        size = self.size()
        return max(1, -(-consumed // size)) if self.endless and size else 1

    def made_of(self) -> tuple[State, tuple[object, ...]]:
        sampler = self.sampler
        return {**self.expected(), "seed": sampler.whole().seed}, (sampler, sampler.generator)

    def expected(self) -> State:
        expected = {"unit": self.unit, "sampler": self.sampler.whole().describe()}
        return {**expected, "endless": True} if self.endless else expected


class SampleOrder(SamplerOrder):
    """The order of one of feedline's samplers, cut into batches."""

    unit = "samples"
    sampler: Sampler
    _planned: Sampler

    def __init__(
        self, sampler: Sampler, batch_size: int | None, *, drop_last: bool, endless: Share | None = None
    ) -> None:
        self.sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self.endless = endless is not None
        self._planned = sampler
        if endless is not None:
            from feedline.order.endless import EndlessSampler  # few loaders have virtual epochs

            self._planned = EndlessSampler(sampler.whole(), endless)

    def made_of(self) -> tuple[State, tuple[object, ...]]:
        values, objects = super().made_of()
        return {**values, "batch_size": self._batch_size, "drop_last": self._drop_last}, objects

    def length(self) -> int | None:
        if self.sampler.share is None or (size := self.sampler.whole().size()) is None:
            return None
        return Steps(size, self._batch_size or 1, self.sampler.share, drop_last=self._drop_last).count

    def anew(self) -> SampleOrder:
        return self

    def without_end(self, share: Share) -> SampleOrder:
        return SampleOrder(
            self.sampler, self._batch_size, drop_last=self._drop_last, endless=self.sampler.share or share
        )

    def plan(self, entry: Entry) -> SamplePlan:
        return SamplePlan(
            self._planned,
            self._batch_size,
            drop_last=self._drop_last,
            key=entry.key,
            draw_key=entry.draw_key,
            consumed=entry.consumed,
        )


class BatchOrder(SamplerOrder):
    """The order of one of feedline's batch samplers."""

    unit = "batches"
    sampler: BatchSampler
    _planned: BatchSampler

    def __init__(self, sampler: BatchSampler, *, endless: Share | None = None) -> None:
        self.sampler = sampler
        self.endless = endless is not None
        self._planned = sampler
        if endless is not None:
            from feedline.order.endless import EndlessBatches  # as above

            self._planned = EndlessBatches(sampler.whole(), endless)

    def without_end(self, share: Share) -> BatchOrder:
        return BatchOrder(self.sampler, endless=self.sampler.share or share)

    def plan(self, entry: Entry) -> BatchPlan:
        return BatchPlan(self._planned, key=entry.key, draw_key=entry.draw_key, consumed=entry.consumed)


class BalancedOrder(SamplerOrder):
    """The order of a `BalancedBatches`, which decides itself which rank gets what."""

    unit = "balanced samples"
    sampler: BalancedBatches
    _planned: BalancedBatches

    def __init__(self, sampler: BalancedBatches, *, endless: Share | None = None) -> None:
        self.sampler = self._planned = sampler
        self._share = endless
        self.endless = endless is not None

    def without_end(self, share: Share) -> BalancedOrder:
        own = self.sampler.share
        return BalancedOrder(self.sampler, endless=own if own.world_size > 1 else share)

    def size(self) -> int:
        return self.sampler.samples

    def stride(self) -> tuple[int | None, int, int]:
        share = self._share or self.sampler.share
        size = self.sampler.batch_size
        if size is None:  # about as many
            size = max(1, self.sampler.samples // max(1, len(self.sampler) * share.world_size))
        return size, share.rank, share.world_size

    def state_after(self, batches: int) -> State:
        size, _, ranks = self.stride()
        return {"consumed": min(batches * (size or 1) * ranks, self.sampler.samples), "skipped": batches}

    def made_of(self) -> tuple[State, tuple[object, ...]]:
        values, objects = super().made_of()
        return {**values, "dealing": self.sampler.dealing(self._share).as_state()}, objects

    def check(self, order: State) -> None:
        super().check(order)
        from feedline.samplers.windows import Dealing

        dealing = self.sampler.dealing(self._share)
        if "stride" in order and Dealing.of_state(order["dealt"][-1][0]) != dealing:
            raise BadState(
                "The state was saved while batches were delivered out of order, which identifies them by number. "
                f"Resume with the arguments it was saved with; here they are {dealing}."
            )

    def plan(self, entry: Entry) -> BalancedPlan:
        from feedline.order.balanced import BalancedPlan

        share = self._share or self.sampler.share
        if not entry.order.get("consumed"):
            self.sampler.check(entry.key)
        windows = self.sampler.windows(entry.key, share=share, endless=self.endless, state=entry.order)
        skipped = int(entry.order.get("skipped", 0))
        return BalancedPlan(windows, share.rank, draw_key=entry.draw_key, skipped=skipped)


def order_of(sampler: object, batch_size: int | None, *, drop_last: bool) -> Order | None:
    """Return the order of a sampler (or, without a batch size, of a batch sampler), None if it is not feedline's."""
    if isinstance(sampler, Sampler):
        return SampleOrder(sampler, batch_size, drop_last=drop_last)
    if not isinstance(sampler, BatchSampler):
        return None
    if sampler.deals_to_ranks:
        from feedline.samplers.balanced import BalancedBatches  # few loaders have one

        assert isinstance(sampler, BalancedBatches), "the only sampler of this kind"
        return BalancedOrder(sampler)
    cut = sampler.cut_from()
    return BatchOrder(sampler) if cut is None else SampleOrder(cut[0], cut[1], drop_last=cut[2])


class SpanOrder(Order):
    """The samples of an iterable dataset that the loader shards."""

    unit = "stream samples"

    def __init__(self, sharding: StreamSharding) -> None:
        self._sharding = sharding

    def stride(self) -> tuple[int | None, int, int]:
        return self._sharding.batch_size, self._sharding.share.rank, self._sharding.share.world_size

    def plan(self, entry: Entry) -> SpanPlan:
        from feedline.order.streams import SpanPlan  # only for iterable datasets

        return SpanPlan(self._sharding, draw_key=entry.draw_key, consumed=entry.consumed)

    def common_seed(self) -> int | None:
        return 0 if self._sharding.share.world_size > 1 else None

    def expected(self) -> State:
        return {"unit": self.unit}


class StreamOrder(Order):
    """The batches of an iterable dataset; each worker, if there are any, has its own stream."""

    unit = "stream batches"

    def __init__(self, batch_size: int | None, share: Callable[[], Share] = share_if_known) -> None:
        self.batch_size = batch_size
        self._share = share

    def plan(self, entry: Entry) -> StreamPlan:
        from feedline.order.streams import StreamPlan

        return StreamPlan(self.batch_size, entry.draw_key, self._share())

    def draw_next(self) -> State:
        from feedline.order.streams import StreamPlan

        return StreamPlan(self.batch_size, 0, self._share()).after()

    def expected(self) -> State:
        return {"unit": self.unit, "batch_size": self.batch_size}


def reads_stream(order: Order) -> bool:
    """True if the dataset is iterable."""
    return order.unit in ("stream batches", "stream samples")
