"""Orders of third-party samplers: followed exactly, and entered in the middle by iterating up to that position.

A sampler, or its iterator, that has a state is entered by that instead.
"""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from feedline.abc.sampler import BatchSampler, Sampler
from feedline.abc.stateful import Stateful, is_stateful
from feedline.errors import BadState
from feedline.order.order import Entry, Order
from feedline.order.plan import Plan
from feedline.order.sharding import layers_of
from feedline.randomness.keys import mix
from feedline.samplers.taken import taken, taken_each
from feedline.system.ranks import Share
from feedline.types import Draw, IndexBlock, State

if TYPE_CHECKING:
    from feedline.frameworks.torch_samplers import GeneratorOrigin


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
        make_twin: for torch's own samplers, returns the same kind of order by one of feedline's, which can be endless.
    """

    unit = "own batches"

    def __init__(
        self,
        sampler: Iterable[object],
        iterate: Callable[[dict[str, object]], Iterator[object]] | None = None,
        *,
        inner: object = None,
        origin: GeneratorOrigin | None = None,
        batch_size: int | None = None,
        drop_last: bool = False,
        share: Callable[[], Share] = Share,
        make_twin: Callable[[], Order] | None = None,
    ) -> None:
        self._sampler = sampler
        self._make_twin = make_twin
        self._iterate = iterate
        self._origin = origin
        self._batch_size = batch_size
        self._drop_last = drop_last
        self._share = share
        self._parts: list[Any] = [sampler] if inner is None or inner is sampler else [sampler, inner]
        self._stateful: list[Stateful] = [part for part in self._parts if is_stateful(part)]
        self._epochal: Any = None
        """The sampler that has `set_epoch`, like torch's DistributedSampler."""
        for part in self._parts:
            if self._epochal is None and hasattr(part, "set_epoch") and isinstance(getattr(part, "epoch", None), int):
                self._epochal = part
        self._epoch: int | None = None
        self._begun_with: int | None = None
        """The sampler's epoch when an iteration had begun. Some samplers increment it themselves meanwhile."""
        self._indices: Iterator[object] | None = None
        self._noted: dict[str, object] = {}
        self._is_prepared = False
        self._is_drawn = False

    def anew(self) -> ForeignOrder | None:
        if self._make_twin is None:
            return None
        order = object.__new__(ForeignOrder)
        vars(order).update(vars(self), _indices=None, _is_prepared=False, _is_drawn=False)
        return order

    def prepare(self, order: dict[str, object]) -> None:
        if self._is_drawn and order.get("sampler_state") is None:
            self._is_drawn = False  # the iterator exists, and nothing was requested from it yet
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

    def followers(self) -> list[Sampler | BatchSampler]:
        if self._make_twin is not None:
            return []
        layers = layers_of(self._sampler)
        return [one for one in layers if isinstance(one, (Sampler, BatchSampler)) and one.loader_seed is not None]

    def made_of(self) -> tuple[State, tuple[object, ...]]:
        values = {**self.expected(), "drop_last": self._drop_last, "epoch": getattr(self._epochal, "epoch", None)}
        return values, (*self._parts, None if self._origin is None else self._origin.generator)

    def epoch_set_by_user(self) -> int | None:
        sampler = self._epochal
        if self._begun_with is None:  # feedline's samplers, inside another one, record whether `set_epoch` was called
            return sampler.epoch if getattr(sampler, "epoch_was_set", False) else None
        return int(sampler.epoch) if self.is_stale() else None

    def is_stale(self) -> bool:
        # Only whether it has changed counts, not its value: the loader counts epochs of its own.
        return self._begun_with is not None and self._epochal.epoch != self._begun_with

    def mark_epoch_begun(self, epoch: int) -> None:
        sampler = self._epochal
        if self.is_stale():
            sampler.set_epoch(self._begun_with)
        self._begun_with = getattr(sampler, "epoch", None)

    def _enter(self, order: State) -> None:
        if "sampler_epoch" in order and not order.get("finish"):
            sampler = self._epochal
            if sampler is not None and sampler.epoch != order["sampler_epoch"]:
                sampler.set_epoch(order["sampler_epoch"])
        self._epoch = getattr(self._epochal, "epoch", None)
        self._begun_with = None
        states = order.get("sampler_state")
        if states is not None:
            states = copy.deepcopy(states)  # the sampler may keep and change it
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

    def draw_next(self) -> State:
        if self._origin is not None:
            self.prepare({})
            assert self._indices is not None
            next(self._indices, None)
            return self._noted
        self._enter({})
        snapshot = _find_snapshot(self._stateful, self._indices)
        self._is_drawn = True
        return {} if snapshot is None else {"sampler_state": snapshot(), "held": [], "redraw": 0}

    def plan(self, entry: Entry) -> ForeignPlan:
        if self._indices is None:
            self.prepare(entry.order)
        indices, self._indices = self._indices, None
        assert indices is not None
        if entry.consumed and entry.order.get("sampler_state") is None:
            _skip(indices, entry.consumed, type(self._sampler).__name__)
        return ForeignPlan(self, indices, entry)

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
        for name, needed in {"sampler_state": self._stateful, "sampler_epoch": self._epochal}.items():
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
        world_size = self._share().world_size
        if world_size > 1:
            entries["world_size"] = world_size
        return entries


def _skip(indices: Iterator[object], count: int, what: str) -> None:
    """Skip the first `count` items of an iterator, of which no sample is loaded."""
    done = sum(1 for _ in islice(indices, count))
    if done < count:
        raise BadState(
            f"The state says that {count:,} batches were consumed, but {what} has only {done:,}. Use the sampler "
            "that the state was saved with."
        )


class ForeignPlan(Plan):
    """A plan over the items of an iterator.

    Args:
        order: what the iterator is of, as it was prepared for this epoch.
        indices: the iterator, already at the position to continue from.
        entry: where the epoch is entered; states of batches that the training loop has received are dropped.
    """

    def __init__(self, order: ForeignOrder, indices: Iterator[object], entry: Entry) -> None:
        self._order = order
        self._indices = indices
        self._entry = entry
        self._share: Share | None = None
        """The share of this rank, once it was needed."""
        origin = order._origin
        self._noted = order._noted
        """What is needed to begin the same order again. The iterator fills it in when it yields its first item."""
        self._entries: dict[str, object] = {} if order._epoch is None else {"sampler_epoch": order._epoch}
        """Further entries of a state; None for values that are not known yet."""
        if order._stateful:
            self._entries["sampler_state"] = None
        if origin is not None:
            self._entries[origin.drawn_from] = None
        # A sampler that draws a seed has a private generator. The training loop may also draw from a generator that was
        # passed to the sampler, and then the order of the draws matters.
        self.goes_ahead = origin is not None and origin.drawn_from == "torch_seed"
        self._entered = entered = _entered(entry.order)
        """The sampler's part of a snapshot, if the plan continues from there."""
        self._is_begun = order._make_twin is not None
        self._snapshot: Callable[[], object] | None = None
        """Returns the state of a stateful sampler."""
        self._ahead: list[object] = []
        self._drawn = 0
        self._states: deque[tuple[int, object]] = deque()
        """States of a stateful sampler, each with the number of batches it follows."""
        self._last: int | None = None
        """The number of batches, once it is known that there are no more."""
        self._held: list[object] = [] if entered is None else copy.deepcopy(entered.get("held", []))
        """The first batch, if the sampler had yielded it before its state was saved."""
        self._first: list[object] = list(self._held)
        """The first batch, kept for a state from before it."""
        if self._held and entered is not None:  # it may be the last batch as well
            self._states.append((0, entered["sampler_state"] if entered.get("redraw") else entered["before"]))

    def _begin(self) -> None:
        """Find out whether the sampler has a state, just before its first item: some iterators do not exist earlier."""
        if self._is_begun:
            return
        self._is_begun = True  # even if this raises the sampler's exception
        self._snapshot = _find_snapshot(self._order._stateful, self._indices)
        if self._snapshot is not None:
            self._states.append((len(self._held), copy.deepcopy(self._snapshot())))

    def __next__(self) -> object:
        if self._ahead:
            return self._ahead.pop()
        if not self._is_begun:
            self._begin()
        if self._held:
            self._drawn += 1
            self._last = 1 if getattr(self._indices, "ended", False) else None
            return self._held.pop()
        if self._drawn:
            indices = next(self._indices)
        else:
            with self._order.drawing():  # most samplers draw their order now
                indices = next(self._indices)
        if type(indices) is not IndexBlock:
            indices = taken(indices)  # the sampler may reuse the object for the next batch
        self._drawn += 1
        if self._snapshot is not None:
            if self._drawn == 1:
                self._first = [indices]
            self._states.append((self._drawn, copy.deepcopy(self._snapshot())))
            if getattr(self._indices, "ended", False):
                self._last = self._drawn
            self._forget(self._entry.progress.delivered)
        return indices

    def _forget(self, done: int) -> None:
        """Drop states that are older than the one before the last delivered batch."""
        while len(self._states) > 1 and self._states[1][0] < done:
            self._states.popleft()

    def draw(self, ordinal: int) -> Draw:
        share = self._share
        if share is None:
            share = self._share = self._order._share()
        number = (self._entry.consumed + ordinal) * share.world_size + share.rank
        return Draw(mix(self._entry.draw_key, number))

    def state(self, done: int) -> State:
        self._begin()
        if self._order._origin is not None and not self._noted and not self._drawn:
            with contextlib.suppress(StopIteration):  # nothing to draw: nothing to save
                self._ahead.append(next(self))
        consumed = self._entry.consumed + done
        return {"unit": "own batches", "consumed": consumed, **self._known(), **self._sampler_state(done)}

    def _known(self) -> dict[str, object]:
        return {**self._entries, **self._noted}

    def last_state(self, done: int) -> dict[str, object]:
        if self._drawn:
            return self.state(done)
        # The sampler has not been asked for anything, so its order is not known. It is drawn when the epoch begins.
        return {"unit": "own batches", "consumed": self._entry.consumed, **self._known(), **(self._entered or {})}

    def _sampler_state(self, done: int) -> dict[str, object]:
        """Return the state of a stateful sampler after `done` batches.

        A sampler that was asked for more than it has may have started its next epoch. So after the last batch, this is
        the state before that batch, which is then drawn again.

        A sampler that was asked for nothing yet may still report the end of its last pass: many are generators, which
        run no code before that. So before the first batch, this is the state after that batch, and the batch itself;
        and the state before it, in case it turns out to be the last one.
        """
        if done == 0 and self._entered is not None:
            return copy.deepcopy(self._entered)
        if done == 0 and self._snapshot is not None:
            if not self._drawn:
                with contextlib.suppress(StopIteration):  # nothing to draw: nothing to hold
                    self._ahead.append(next(self))
            if self._first:
                ends = self._last == 1
                states = dict(self._states)
                part = _snapshot_part(states[0 if ends else 1], copy.deepcopy(self._first), redraw=1 if ends else 0)
                return part if ends else {**part, "before": copy.deepcopy(states[0])}
        redraw = 1 if done == self._last and done else 0
        for number, sampler_state in list(self._states):  # another thread may request a batch meanwhile
            if number == done - redraw:
                return _snapshot_part(sampler_state, [], redraw=redraw)
        return {}  # the sampler has no state, or none before the first batch

    def after(self) -> dict[str, object]:
        origin = self._order._origin
        state = {} if origin is None else origin.after()
        self._last = self._drawn
        found = self._sampler_state(self._drawn)
        return {**state, **found, "finish": True} if found else state


def _snapshot_part(state: object, held: list[object], *, redraw: int) -> dict[str, object]:
    """Return the sampler's part of a snapshot."""
    return {"sampler_state": copy.deepcopy(state), "held": held, "redraw": redraw}


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


def _entered(order: State) -> State | None:
    """Return the sampler's part of a snapshot; None if there is none, or if the snapshot's epoch was completed."""
    if order.get("finish") or order.get("sampler_state") is None:
        return None
    return {name: order[name] for name in ("sampler_state", "redraw", "held", "before") if name in order}


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except Exception:  # the user's code; the length only serves to detect another sampler
        return None
