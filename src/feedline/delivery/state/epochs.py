"""The next epoch, the position in the current one, and the loaded state: the same for both loaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import is_
from typing import NamedTuple

from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.errors import BadState, StateWarning, warn_user
from feedline.order.order import Order, reads_stream
from feedline.types import Position, State


class Start(NamedTuple):
    """How an iteration begins."""

    epoch: int
    snapshot: Snapshot | None = None
    """Where to resume; None at the beginning of an epoch."""
    is_drawn: bool = False
    """True if the snapshot is this loader's own, of an epoch that has not begun: its seeds were just drawn."""
    is_resumed: bool = False
    """True if the snapshot determines the epoch, regardless of `set_epoch`."""
    before: Snapshot | None = None
    """The loaded state, if it is from the end of the previous epoch: `snapshot` holds the part that outlives it."""


@dataclass
class VirtualPlace:
    """A loader's position in its virtual epochs."""

    epoch: int = 0
    step: int = 0
    """Batches of it that were delivered."""


class Epochs:
    """Tracks a loader's epochs."""

    def __init__(self) -> None:
        self._by_hand: int | None = None
        """The argument of `set_epoch`, until an iteration has begun."""
        self._loaded: Snapshot | None = None
        self._drawn: Snapshot | None = None
        """The snapshot that `state` returned before its epoch began; used by the next iteration if it is that epoch."""
        self.drawn_order: Order | None = None
        """The order of that snapshot, which may have opened the user's sampler."""
        self._drawn_from: tuple[State, tuple[object, ...]] = {}, ()
        """What both follow from; see `Order.made_of`."""
        self.checkpoint: Checkpoint | None = None
        """The checkpoint of the last iteration that has begun."""
        self._start = Start(0)
        """How that iteration began."""
        self.virtual: VirtualPlace | None = None
        """The position in virtual epochs, if the loader is in one."""

    def __reduce__(self) -> tuple[Callable[..., Epochs], tuple[object, ...]]:
        return _epochs, (self._by_hand, self._loaded)

    def copy(self) -> Epochs:
        """Return the epochs of a copied loader: at the beginning, as in torch, unless a state was loaded into it."""
        function, arguments = self.__reduce__()
        return function(*arguments)

    @property
    def is_loaded(self) -> bool:
        """True if the next iteration resumes from a state that was loaded."""
        return self._loaded is not None

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration."""
        self._by_hand = epoch

    def order_of(self, order: Order) -> Order:
        """Return the order of the next iteration: the one that `state` used if nothing changed since, else this one."""
        if self.drawn_order is None:
            return order
        assert self._drawn is not None
        (values, objects), (last_values, last_objects) = order.made_of(), self._drawn_from
        is_same = values == last_values and len(objects) == len(last_objects) and all(map(is_, objects, last_objects))
        if is_same and self._drawn.epoch == self._epoch_of(order):
            return self.drawn_order
        self._drawn = self.drawn_order = None
        return order

    def begin(self, order: Order, own: Callable[[Snapshot], Snapshot] | None = None) -> Start:
        """Return which epoch the next iteration is and where it resumes. Changes nothing yet: it may fail to start.

        Args:
            order: the order of its batches.
            own: returns the part of a loaded state that concerns this rank and its workers; None if that is known.
        """
        loaded = self._loaded
        if loaded is not None and own is not None:
            loaded = own(loaded)
        by_hand = self._epoch_set_by_user(order)
        if loaded is None or loaded.ended:
            follows = self._next_epoch if loaded is None else loaded.epoch + 1
            epoch = follows if by_hand is None else by_hand
            if loaded is not None:
                rest = Snapshot(epoch, order=loaded.order, streams=loaded.streams, dataset_epoch=loaded.dataset_epoch)
                return Start(epoch, rest, before=loaded)
            drawn = self._drawn
            if drawn is not None and drawn.epoch == epoch:
                return Start(epoch, drawn, is_drawn=True)
            if order.skips:
                return Start(epoch, Snapshot(epoch, order=order.state_after(order.skips)))
            return Start(epoch)
        if loaded.order.get("endless") and not order.endless:
            raise BadState(
                "The state was saved inside virtual_epochs(), where the data never ends. Resume with "
                "loader.virtual_epochs(...), not with plain iteration."
            )
        if order.endless:
            if loaded.order.get("unit") != order.unit:
                raise BadState(
                    "The state was saved in a plain iteration over a sampler that is not feedline's, such as that of "
                    "shuffle=True without seed=. virtual_epochs() of this loader has an order of its own, and cannot "
                    "continue there. Complete that epoch with plain iteration, and call virtual_epochs() after it. To "
                    "continue a plain epoch inside virtual_epochs(), give the loader a seed from the start."
                )
            order.check({**loaded.order, "endless": True})
        if by_hand is not None and by_hand != loaded.epoch:
            _warn_ignored(by_hand, loaded.epoch)
        return Start(loaded.epoch, loaded, is_resumed=True)

    def begun(self, start: Start, order: Order, checkpoint: Checkpoint) -> None:
        """Record that an iteration has begun. Only then is the state that was loaded for it used up."""
        self._loaded = self._drawn = self._by_hand = self.drawn_order = None
        self.checkpoint, self._start = checkpoint, start
        order.mark_epoch_begun(start.epoch)

    def begins_again(self, order: Order, *, set_epoch_was_called: bool) -> bool:
        """Return whether the last iteration, which has delivered nothing yet, has to begin again.

        It has to if `set_epoch` was called with another epoch since it began, or on the dataset. The next `begin` then
        returns how. The seeds stay as they are.

        Args:
            order: the order of the iteration.
            set_epoch_was_called: True if it was called on the dataset since then, and workers are making other samples.
        """
        start, checkpoint = self._start, self.checkpoint
        assert checkpoint is not None
        requested = self._epoch_set_by_user(order)
        is_stale = requested is not None and (requested != start.epoch or order.is_stale())
        if requested is not None and requested != start.epoch and start.is_resumed:
            _warn_ignored(requested, start.epoch)
        if requested is None or not is_stale or start.is_resumed:
            self._by_hand = None
            order.mark_epoch_begun(start.epoch)
            if not set_epoch_was_called:
                return False
            if start.is_resumed:
                self._loaded = start.snapshot
                return True
            self._drawn = checkpoint.snapshot()
        else:
            before = start.snapshot if start.snapshot is not None and not start.is_drawn else Snapshot(requested)
            self._drawn = replace(
                before, epoch=requested, seed=checkpoint.entry.key.seed, draw_seed=checkpoint.draw_seed
            )
        self._by_hand = self._drawn.epoch
        return True

    def end_epoch(self) -> None:
        """Mark the last iteration as ended if it has delivered anything: no more of it will be requested."""
        if self.checkpoint is not None and self.checkpoint.entry.progress.delivered:
            self.checkpoint.entry.progress.ended = True

    def load(self, snapshot: Snapshot, order: Order) -> None:
        """Keep a snapshot for the next iteration."""
        for each in snapshot.ranks or (snapshot,):
            order.check(each.order)
        if snapshot.is_shared and "rank" in snapshot.order:
            snapshot = replace(snapshot, order={**snapshot.order, **order.draw_next()})  # it is this rank's from now on
        if order.sampler is not None:  # iterating over the sampler itself now yields that epoch
            order.sampler.epoch = snapshot.epoch + int(snapshot.ended)
        self._loaded, self._drawn, self.drawn_order = snapshot, None, None
        self.checkpoint = None
        self.virtual = None

    @property
    def _next_epoch(self) -> int:
        return 0 if self.checkpoint is None else self.checkpoint.next_epoch()

    @property
    def coming_epoch(self) -> int:
        """The epoch of the next iteration, unless `set_epoch` says otherwise."""
        loaded = self._loaded
        return self._next_epoch if loaded is None else loaded.epoch + loaded.ended

    @property
    def loaded_virtual(self) -> tuple[int, int]:
        """The virtual epoch, and the batch of it, at which the loaded state resumes."""
        return (0, 0) if self._loaded is None else self._loaded.virtual or (0, 0)

    def state(
        self,
        order: Order,
        first: Callable[[Order, int], Snapshot],
        draws: Callable[[Snapshot], dict[str, object]] = lambda _: {},
        dataset_epoch: int | None = None,
        own: Callable[[], tuple[Position, ...]] = tuple,
    ) -> State:
        """Return the loader's state.

        Args:
            order: the order of the loader's batches.
            first: makes the snapshot of an epoch that has not begun.
            draws: returns the values that the next epoch is drawn from.
            dataset_epoch: what the dataset's `set_epoch` was last called with. A stream under way keeps its own.
            own: returns the dataset's state before the loader's first epoch, which this loader itself need not restore.
        """
        if self._loaded is not None:
            return self._with_next_epoch(self._loaded, order, dataset_epoch).as_dict()
        if self.checkpoint is None:
            self.order_of(order)
            if self._drawn is None:
                self._drawn, self.drawn_order = first(order, self._epoch_of(order)), order
                self._drawn_from = order.made_of()
            snapshot = replace(self._drawn, streams=own())
        else:
            snapshot = self.checkpoint.snapshot()
        snapshot = replace(snapshot, order={**snapshot.order, **draws(snapshot)})
        if self.checkpoint is None or snapshot.ended or not reads_stream(order):
            snapshot = replace(snapshot, dataset_epoch=dataset_epoch)
        if self.virtual is not None:
            snapshot = replace(snapshot, virtual=(self.virtual.epoch, self.virtual.step))
        return self._with_next_epoch(snapshot, order, dataset_epoch).as_dict()

    def _with_next_epoch(self, snapshot: Snapshot, order: Order, dataset_epoch: int | None) -> Snapshot:
        """Return a snapshot of an ended epoch as that of the epoch before the one that was set by hand, if one was."""
        by_hand = self._epoch_set_by_user(order)
        if by_hand is None or not snapshot.ended:
            return snapshot
        if dataset_epoch is None:
            dataset_epoch = snapshot.dataset_epoch
        ranks = tuple(replace(each, epoch=by_hand - 1, dataset_epoch=dataset_epoch) for each in snapshot.ranks)
        return replace(snapshot, epoch=by_hand - 1, dataset_epoch=dataset_epoch, ranks=ranks)

    def _epoch_of(self, order: Order) -> int:
        """Return the epoch of the next iteration if no state was loaded."""
        by_hand = self._epoch_set_by_user(order)
        return self._next_epoch if by_hand is None else by_hand

    def _epoch_set_by_user(self, order: Order) -> int | None:
        """Return the epoch set by hand on one of the samplers or the loader; None if neither was set."""
        by_hand = order.epoch_set_by_user()
        return self._by_hand if by_hand is None else by_hand


def _warn_ignored(requested: int, epoch: int) -> None:
    warn_user(
        f"set_epoch({requested}) was called, but the loaded state resumes epoch {epoch}, and so does this iteration. "
        "set_epoch() takes effect again for the next one.",
        StateWarning,
    )


def _epochs(by_hand: int | None, loaded: Snapshot | None) -> Epochs:
    epochs = Epochs()
    epochs._by_hand, epochs._loaded = by_hand, loaded
    return epochs
