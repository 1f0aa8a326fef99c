"""Which epoch comes next, where the current one is, and what state was loaded: the same for both loaders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.errors import BadState, StateWarning, warn_user
from feedline.order.order import Order


@dataclass(frozen=True)
class Start:
    """How an iteration begins."""

    epoch: int
    snapshot: Snapshot | None = None
    """Where to go on; None at the beginning of an epoch."""
    is_settled: bool = False
    """True if the snapshot is this loader's own, of the beginning: what it holds was drawn a moment ago."""
    is_resumed: bool = False
    """True if the snapshot says which epoch this is, whatever `set_epoch` says."""
    before: Snapshot | None = None
    """The state that was loaded, if it is of the end of the epoch before: `snapshot` holds what outlives that."""


@dataclass
class VirtualPlace:
    """Where a loader is in its virtual epochs."""

    epoch: int = 0
    step: int = 0
    """Batches of it that were delivered."""


class Epochs:
    """Keeps account of a loader's epochs."""

    def __init__(self) -> None:
        self._next_epoch = 0
        self._by_hand: int | None = None
        """The epoch that `set_epoch` said, until an iteration has begun."""
        self._loaded: Snapshot | None = None
        self._settled: Snapshot | None = None
        """What `state` told of an epoch that had not begun: the next iteration keeps to it, if it is that one."""
        self.settled_order: Order | None = None
        """The order that this was said of, which may have opened the user's sampler."""
        self.checkpoint: Checkpoint | None = None
        """Of the last iteration that was begun."""
        self._start = Start(0)
        """How that one began."""
        self.virtual: VirtualPlace | None = None
        """Where the loader is in virtual epochs, if it is in any."""

    def __reduce__(self) -> Any:
        return _epochs, (self._next_epoch if self.checkpoint is None else 0, self._by_hand, self._loaded)

    def copy(self) -> Epochs:
        """Return the epochs of a copied loader: at the beginning, as torch's is, unless a state was loaded into it."""
        function, arguments = self.__reduce__()
        epochs: Epochs = function(*arguments)
        return epochs

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is."""
        self._by_hand = epoch

    def order_of(self, order: Order) -> Order:
        """Return the order that an iteration goes through: this one, or the one that `state` told of, if it is that."""
        settled = self.settled_order
        if settled is None or settled.is_of(order):
            return settled or order
        self._settled = self.settled_order = None  # the sampler was replaced since
        return order

    def begin(self, order: Order) -> Start:
        """Say which epoch an iteration is that is about to begin, and where it goes on. Changes nothing yet."""
        loaded = self._loaded
        by_hand = self._told(order)
        if loaded is None or loaded.ended:
            follows = self._next_epoch if loaded is None else loaded.epoch + 1
            epoch = follows if by_hand is None else by_hand
            if loaded is not None:
                rest = Snapshot(epoch, order=loaded.order, streams=loaded.streams, dataset_epoch=loaded.dataset_epoch)
                return Start(epoch, rest, before=loaded)
            settled = self._settled
            if settled is not None and settled.epoch == epoch:
                return Start(epoch, settled, is_settled=True)
            if order.skips:
                return Start(epoch, Snapshot(epoch, order={"consumed": order.place_after(order.skips)}))
            return Start(epoch)
        if loaded.order.get("endless") and not order.endless:
            raise BadState(
                "The state was saved inside virtual_epochs(), where the data never ends: go on with "
                "loader.virtual_epochs(...), not with a plain iteration."
            )
        if order.endless and loaded.order.get("endless"):
            order.check(loaded.order)
        if by_hand is not None and by_hand != loaded.epoch:
            _tell_ignored(by_hand, loaded.epoch)
        return Start(loaded.epoch, loaded, is_resumed=True)

    def begun(self, start: Start, order: Order, checkpoint: Checkpoint) -> None:
        """Note that an iteration has begun; a state that was loaded for it is used up, and no sooner."""
        self._loaded = self._settled = self._by_hand = self.settled_order = None
        self._next_epoch = start.epoch + 1
        self.checkpoint, self._start = checkpoint, start
        order.tell_epoch(start.epoch)

    def begins_again(self, order: Order, *, dataset_told: bool) -> bool:
        """Say whether the last iteration has to begin again, of which nothing was delivered yet.

        It has to if it was told another epoch since it began; then the next `begin` tells how. Nothing is drawn anew:
        whatever the seeds are, they stay.

        Args:
            order: what it goes through.
            dataset_told: True if the dataset was told an epoch since then, and workers have other samples under way.
        """
        start, checkpoint = self._start, self.checkpoint
        assert checkpoint is not None
        told = self._told(order)
        is_stale = told is not None and (told != start.epoch or order.is_stale())
        if told is not None and told != start.epoch and start.is_resumed:
            _tell_ignored(told, start.epoch)
        if told is None or not is_stale or start.is_resumed:
            self._by_hand = None
            order.tell_epoch(start.epoch)
            if not dataset_told:
                return False
            if start.is_resumed:
                self._loaded = start.snapshot
                return True
            self._settled = checkpoint.snapshot()
        else:
            before = start.snapshot if start.snapshot is not None and not start.is_settled else Snapshot(told)
            self._settled = replace(before, epoch=told, seed=checkpoint.entry.key.seed, draw_seed=checkpoint.draw_seed)
        self._by_hand = self._settled.epoch
        return True

    def end_epoch(self) -> None:
        """Take the last iteration for ended, if anything of it was delivered: nobody is going to ask for more."""
        if self.checkpoint is not None and self.checkpoint.entry.progress.delivered:
            self.checkpoint.entry.progress.ended = True

    def load(self, state: Any, order: Order) -> None:
        """Keep a state for the next iteration."""
        if isinstance(state, dict) and not state:  # torchdata: an empty state is none
            return
        snapshot = Snapshot.from_dict(state)
        for each in snapshot.ranks or (snapshot,):
            order.check(each.order)
        if snapshot.is_shared and "rank" in snapshot.order:
            snapshot = replace(snapshot, order={**snapshot.order, **order.settle()})  # it is this rank's from now on
        for sampler in order.samplers:  # whoever iterates over it meanwhile gets that epoch
            sampler.epoch = snapshot.epoch + int(snapshot.ended)
        self._loaded, self._settled, self.settled_order = snapshot, None, None
        self.checkpoint = None
        self.virtual = None

    def place(self, own: Callable[[Snapshot], Snapshot]) -> None:
        """Let the next iteration go on where `own` says, of the state that was loaded, if one was."""
        if self._loaded is not None:
            self._loaded = own(self._loaded)

    @property
    def has_not_begun(self) -> bool:
        """True if there was no iteration yet, and no state was loaded."""
        return self._loaded is None and self.checkpoint is None

    @property
    def coming_epoch(self) -> int:
        """The epoch that the next iteration is, as far as nobody says otherwise."""
        loaded = self._loaded
        return self._next_epoch if loaded is None else loaded.epoch + loaded.ended

    @property
    def loaded_virtual(self) -> tuple[int, int]:
        """The virtual epoch, and the batches of it, where a loaded state goes on."""
        return (0, 0) if self._loaded is None else self._loaded.virtual or (0, 0)

    def state(
        self,
        order: Order,
        first: Callable[[Order, int], Snapshot],
        opening: Callable[[Order], tuple[dict[str, Any], ...]] = lambda _: (),
        after: Callable[[], dict[str, Any]] = dict,
    ) -> dict[str, Any]:
        """Return where the loader is.

        Args:
            order: which batches it delivers.
            first: makes the snapshot of an epoch that has not begun.
            opening: returns what that snapshot is to hold of the dataset; this loader's own epoch does not need it.
            after: returns what the next epoch begins with, when one has ended.
        """
        if self._loaded is not None:
            return self._loaded.as_dict()
        if self.checkpoint is None:
            by_hand = self._told(order)
            epoch = self._next_epoch if by_hand is None else by_hand
            if self._settled is None or self._settled.epoch != epoch:
                self._settled, self.settled_order = first(order, epoch), order
            return replace(self._settled, streams=opening(order)).as_dict()
        snapshot = self.checkpoint.snapshot()
        if snapshot.ended:
            snapshot = replace(snapshot, order={**snapshot.order, **after()})
        if self.virtual is not None:
            snapshot = replace(snapshot, virtual=(self.virtual.epoch, self.virtual.step))
        return snapshot.as_dict()

    def _told(self, order: Order) -> int | None:
        """Return the epoch that the loader or one of its samplers was told by hand, None if they were not."""
        by_hand = order.told_epoch()
        return self._by_hand if by_hand is None else by_hand


def _tell_ignored(told: int, epoch: int) -> None:
    warn_user(
        f"set_epoch({told}) was called, but the state that was loaded goes on in epoch {epoch}, and so does this "
        "iteration. The next one obeys set_epoch again.",
        StateWarning,
    )


def _epochs(next_epoch: int, by_hand: int | None, loaded: Snapshot | None) -> Epochs:
    epochs = Epochs()
    epochs._next_epoch, epochs._by_hand, epochs._loaded = next_epoch, by_hand, loaded
    return epochs
