"""Orders of third-party samplers: followed exactly, and entered in the middle by iterating up to that position."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

from feedline.abc.sampler import BatchSampler, Sampler
from feedline.abc.stateful import Stateful, is_stateful
from feedline.errors import BadState
from feedline.order.foreign import ForeignPlan, skip
from feedline.order.order import Entry, Order
from feedline.order.sharding import layers_of
from feedline.types import Share, State
from feedline.types.indices import taken_each


class CutIndices(Iterator[list[object]]):
    """The indices of a third-party sampler in lists.

    Like torch's BatchSampler, it requests the sampler's iterator together with the first batch.
    """

    def __init__(self, sampler: Iterable[object], batch_size: int, *, drop_last: bool) -> None:
        self._sampler = sampler
        self._batch_size = batch_size
        self._drop_last = drop_last
        self.source: Iterator[object] | None = None
        """The sampler's iterator, which may have a state; None until it is requested."""
        self.ended = False
        """True after a batch that was not full (the sampler is exhausted, and may have started its next epoch), and
        after an exception of the sampler."""

    def open(self) -> Iterator[object]:
        """Request the sampler's iterator."""
        self.ended = True  # until it is there
        self.source = iter(self._sampler)
        self.ended = False
        return self.source

    def __next__(self) -> list[object]:
        if self.ended:
            raise StopIteration
        source = self.open() if self.source is None else self.source
        self.ended = True  # an exception of the sampler ends torch's BatchSampler, which is a generator
        batch = taken_each(islice(source, self._batch_size))
        self.ended = len(batch) < self._batch_size
        if not batch or (self._drop_last and self.ended):
            raise StopIteration
        return batch


class ForeignOrder(Order):
    """The order of any iterable.

    Args:
        sampler: yields the contents of each batch, every time it is iterated over.
        iterate: returns an iterator over it; None for `iter(sampler)`.
        inner: the sampler that `sampler` takes its indices from, if known: it may have a state.
        origin: notes and restores what an order begins with, if that is possible; `iterate` is called with the notes.
        batch_size: samples of a batch, as far as the loader knows.
        share: this rank.
        make_twin: returns the same kind of order by one of feedline's samplers, which can be endless. None if there is
            none; given only for samplers of torch's own.
    """

    unit = "own batches"

    def __init__(
        self,
        sampler: Iterable[object],
        iterate: Callable[[dict[str, object]], Iterator[object]] | None = None,
        *,
        inner: object = None,
        origin: Origin | None = None,
        batch_size: int | None = None,
        share: Share | None = None,
        make_twin: Callable[[], Order] | None = None,
    ) -> None:
        self._sampler = sampler
        self._make_twin = make_twin
        self._iterate = iterate
        self._origin = origin
        self._batch_size = batch_size
        self._share = share or Share()
        self._parts: list[Any] = [sampler] if inner is None or inner is sampler else [sampler, inner]
        self._stateful: list[Stateful] = [part for part in self._parts if is_stateful(part)]
        self._epoch: int | None = None
        self._begun_with: int | None = None
        """The sampler's epoch when an iteration had begun. Some samplers increment it themselves meanwhile."""
        self._indices: Iterator[object] | None = None
        self._noted: dict[str, object] = {}
        self._is_prepared = False
        self._is_settled = False

    def prepare(self, order: dict[str, object]) -> None:
        if self._is_settled and order.get("sampler_state") is None:
            self._is_settled = False  # the iterator exists, and nothing was requested from it yet
            return
        first, self._is_prepared = not self._is_prepared, True
        if order.get("finish"):  # the last epoch was completed: let the sampler end it and begin another
            if first:
                self._enter(order)
                assert self._indices is not None
                next(self._indices, None)
            order = {}
        elif first and self._origin is not None:
            self._origin.begin(order)
        self._enter(order)

    def _epochal(self) -> Any:
        """Return the sampler that has `set_epoch`, like torch's DistributedSampler; None if there is none."""
        for part in self._parts:
            if hasattr(part, "set_epoch") and isinstance(getattr(part, "epoch", None), int):
                return part
        return None

    def followers(self) -> list[Sampler | BatchSampler]:
        if self._make_twin is not None:
            return []
        layers = layers_of(self._sampler)
        return [one for one in layers if isinstance(one, (Sampler, BatchSampler)) and one.loader_seed is not None]

    def is_of(self, other: Order) -> bool:
        if not isinstance(other, ForeignOrder) or len(self._parts) != len(other._parts):
            return False
        return all(mine is theirs for mine, theirs in zip(self._parts, other._parts, strict=True))

    def epoch_set_by_user(self) -> int | None:
        sampler = self._epochal()
        if self._begun_with is None:  # feedline's samplers, inside another one, record whether `set_epoch` was called
            return sampler.epoch if getattr(sampler, "epoch_was_set", False) else None
        return int(sampler.epoch) if self.is_stale() else None

    def is_stale(self) -> bool:
        # Only whether it has changed counts, not its value: the loader counts epochs of its own.
        return self._begun_with is not None and self._epochal().epoch != self._begun_with

    def mark_epoch_begun(self, epoch: int) -> None:
        sampler = self._epochal()
        if self.is_stale():
            sampler.set_epoch(self._begun_with)
        self._begun_with = getattr(sampler, "epoch", None)

    def _enter(self, order: State) -> None:
        if "sampler_epoch" in order and not order.get("finish"):
            sampler = self._epochal()
            if sampler is not None and sampler.epoch != order["sampler_epoch"]:
                sampler.set_epoch(order["sampler_epoch"])
        self._epoch = getattr(self._epochal(), "epoch", None)
        self._begun_with = None
        states = copy.deepcopy(order.get("sampler_state"))  # the sampler may keep and change it
        if states is not None:
            for part, state in zip(self._stateful, states["parts"], strict=True):
                part.load_state_dict(state)
        self._noted = {} if self._origin is None else self._origin.found_in(order)
        self._indices = iter(self._sampler) if self._iterate is None else self._iterate(self._noted)
        if states is not None and states.get("iterator") is not None:
            source = _opened(self._indices)
            if not is_stateful(source):
                raise BadState(
                    f"The state holds the state of a sampler's iterator, but {type(source).__name__} has no "
                    "load_state_dict. Use the sampler that it was saved with."
                )
            source.load_state_dict(states["iterator"])
        for _ in range(order.get("redraw", 0)):
            next(self._indices, None)

    def settle(self) -> State:
        if self._origin is not None:
            self.prepare({})
            assert self._indices is not None
            next(self._indices, None)
            return self._noted
        self._enter({})
        snapshot = _find_snapshot(self._stateful, self._indices)
        self._is_settled = True
        return {} if snapshot is None else {"sampler_state": snapshot(), "held": [], "redraw": 0}

    def plan(self, entry: Entry) -> ForeignPlan:
        if self._indices is None:
            self.prepare(entry.order)
        indices = self._indices
        assert indices is not None
        if entry.consumed and entry.order.get("sampler_state") is None:
            indices = skip(indices, entry.consumed, type(self._sampler).__name__)
        plan = ForeignPlan(
            indices,
            draw_key=entry.draw_key,
            share=self._share,
            consumed=entry.consumed,
            origin=None if self._origin is None else self._noted,
            entered=_entered(entry.order),
            find_snapshot=functools.partial(_find_snapshot, self._stateful, indices),
            entries=self._entries(),
            after=None if self._origin is None else self._origin.after,
            drawing=self.drawing,
            # A sampler that draws a seed has a private generator. The training loop may also draw from a generator that
            # was passed to the sampler, and then the order of the draws matters.
            goes_ahead=self._origin is not None and self._origin.drawn_from == "torch_seed",
            progress=entry.progress,
        )
        self._indices = None
        return plan

    def _entries(self) -> dict[str, object]:
        """Return further entries of a state; None for values that the plan has not found out."""
        entries: dict[str, object] = {} if self._epoch is None else {"sampler_epoch": self._epoch}
        if self._stateful:
            entries["sampler_state"] = None
        if self._origin is not None:
            entries[self._origin.drawn_from] = None
        return entries

    def without_end(self, share: Share) -> Order | None:
        return None if self._make_twin is None else self._make_twin().without_end(share)

    def check(self, order: State) -> None:
        if order.get("endless") and self._make_twin is not None:
            self._make_twin().check(order)
            return
        super().check(order)
        begun = order.get("consumed", 0) > 0
        if self._origin is not None:
            self._origin.check(order)
        for name, needed in {"sampler_state": self._stateful, "sampler_epoch": self._epochal()}.items():
            if begun and needed and name not in order:
                raise BadState(
                    f"The state has no order.{name}, which this loader's sampler needs to resume. Use the sampler that "
                    "the state was saved with, or start the epoch from the beginning."
                )
        states = order.get("sampler_state")
        if states is not None and len(states.get("parts", ())) != len(self._stateful):
            raise BadState(
                f"The state holds the states of {len(states.get('parts', ()))} samplers, but "
                f"{len(self._stateful)} of this loader's have state_dict and load_state_dict. "
                "Use the samplers that it was saved with."
            )

    def expected(self) -> State:
        entries: dict[str, object] = {"unit": self.unit, "batch_size": self._batch_size}
        entries["length"] = _length(self._sampler)
        if self._share.world_size > 1:
            entries["world_size"] = self._share.world_size
        return entries


class Origin(Protocol):
    """What the order of a third-party sampler begins with, such as the state of its generator."""

    drawn_from: str
    """Its name in a snapshot."""

    def begin(self, order: dict[str, object]) -> None:
        """Restore the result of `after`, before anything of the epoch is drawn."""

    def check(self, order: dict[str, object]) -> None:
        """Raise BadState if a snapshot's `order` is damaged, or does not hold how the order was drawn."""

    def found_in(self, order: dict[str, object]) -> dict[str, object]:
        """Return its entries in a snapshot's `order`; empty at the beginning, to be filled in by the iterator."""

    def after(self) -> dict[str, object]:
        """Return what the order of the next epoch begins with; empty if it is drawn then."""


def _find_snapshot(parts: list[Stateful], indices: object) -> Callable[[], dict[str, object]] | None:
    """Return a function that returns the states of samplers and iterator; None if they have none."""
    source = _opened(indices)
    own = source if is_stateful(source) else None
    if not parts and own is None:
        return None
    return lambda: {
        "parts": [part.state_dict() for part in parts],
        "iterator": None if own is None else own.state_dict(),
    }


def _opened(indices: object) -> Any:
    """Return the iterator that may have a state, also if nothing was requested from it yet."""
    if not isinstance(indices, CutIndices):
        return indices
    return indices.open() if indices.source is None else indices.source


def _entered(order: dict[str, object]) -> dict[str, object] | None:
    """Return the sampler's part of a snapshot; None if there is none, or if the snapshot's epoch was completed."""
    if order.get("finish") or order.get("sampler_state") is None:
        return None
    return {name: order[name] for name in ("sampler_state", "redraw", "held") if name in order}


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:  # the user's code; the length only serves to detect another sampler
        return None
