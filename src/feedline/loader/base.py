"""The base of both loaders: iteration, saving and restoring the position, and statistics."""

from __future__ import annotations

import copy
import html
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

from feedline.abc.source import repeats_itself
from feedline.abc.stateful import is_stateful
from feedline.delivery.state import Snapshot
from feedline.errors import BadOption, StateWarning, warn_user
from feedline.faults.log import FaultLog
from feedline.insight.stats import Stats
from feedline.loader.arguments import check_count
from feedline.loader.live import live
from feedline.loader.parts import LoaderParts
from feedline.loader.virtual_epochs import VirtualEpochs
from feedline.order.order import Order
from feedline.types.ranks import share_if_known


class LoaderBase(LoaderParts):
    """Base of the loaders."""

    _listener: Listener | None = None
    """The callback given to `on_stats`."""

    def stats(self) -> Stats:
        """Return the measurements so far: rates, what training waited for, stages, workers, memory, faults.

        Print it, or read `verdict`: what training waits for, and what to do about it. You may call this at any time,
        also during an iteration. Memory figures leave out workers that have ended.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader(list(range(60)), 2)
            >>> total = sum(int(batch.sum()) for batch in loader)
            >>> stats = loader.stats()
            >>> stats.epoch.batches, stats["batches"], stats.epoch.samples
            (30, 30, 60)
            >>> sorted(stats.epoch.waits)
            ['collate', 'deliver', 'fetch', 'start']
        """
        stats = self._resources.stats(self._fault_budget.log.counts())
        auto = None if self._tuning is None else self._tuning.state
        return replace(stats, settings={**stats.settings, "batch_size": self.batch_size, "auto": auto})

    def on_stats(self, callback: Callable[[Stats], object] | None, *, every_s: float = 10.0) -> None:
        """Call `callback` with `stats()` about every `every_s` seconds during iteration.

        The call happens in the training loop's thread, when it requests a batch. So the callback may log to W&B,
        MLflow, TensorBoard or any other tool that must be called from there, and `next()` raises its exceptions. Takes
        effect from the next epoch on. A loader has one callback; None removes it.

        Example:
            >>> from feedline import Loader
            >>> loader, logged = Loader(list(range(6)), 2), []
            >>> loader.on_stats(lambda stats: logged.append(stats.flat()), every_s=0)
            >>> batches = list(loader)
            >>> [figures["feedline/epoch/batches"] for figures in logged]
            [0, 1, 2, 3]
        """
        if not (callback is None or callable(callback)):
            raise BadOption(f"on_stats() was given {callback!r}, which cannot be called. Give a function of the stats.")
        if not every_s >= 0:
            raise BadOption(
                f"every_s={every_s!r} is no time to wait between two calls. Give seconds, 0 for every batch."
            )
        self._listener = None if callback is None else Listener(weakref.ref(self), callback, every_s)

    def live(self) -> AbstractContextManager[None]:
        """Show the loader's progress on standard error while the training loop runs inside this context.

        On a terminal the view is redrawn in place once a second if rich is installed; elsewhere a line is written every
        five seconds. `FEEDLINE_LIVE=1` in the environment shows every loader of a program.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader(list(range(60)), 2)
            >>> with loader.live():
            ...     total = sum(int(batch.sum()) for batch in loader)
        """
        return live(self)

    def _repr_html_(self) -> str:
        return f"<p><code>{html.escape(repr(self))}</code></p>{self.stats()._repr_html_()}"

    def close(self) -> None:
        """Stop iterations and workers, and free their memory. You can iterate over the loader again afterwards.

        A loop in another thread that is waiting for a batch ends as at the end of an epoch; `state_dict` returns its
        position. If another thread is inside `iter()` at that moment, its iterator has no batches. May be called from a
        signal handler.
        """
        self._running.close()
        self._iterator = None
        self._give_back()

    def _give_back(self) -> None:
        """Free the memory; if an iterator is being created, do so after that."""
        self._resources.close(self._running.is_beginning)

    # -- iteration ---------------------------------------------------------------------------------------------------

    @property
    def faults(self) -> FaultLog:
        """The samples that failed, and how each failure was handled. Part of `state_dict`.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader({7: "seven"}, 1, sampler=[7, 8], on_error="skip")
            >>> [batch for batch in loader]
            [['seven']]
            >>> [(fault.index, fault.error, fault.action) for fault in loader.faults]
            [(8, 'KeyError', 'skip')]
        """
        return self._fault_budget.log

    def __iter__(self) -> Any:  # an iterator; torch declares one of its own classes
        self._epochs.virtual = None
        last = self._epochs.checkpoint
        has_ended = last is not None and last.entry.progress.ended
        self._rank_watch.begin(self.dataset, self._sharing(), has_ended=has_ended)
        return self._begun()

    def _begun(self) -> Any:
        """Return a new iteration, or the one that `state_dict` already started to find out its initial state."""
        early = self._running.take_early()
        return self._iterate(self._epochs.order_of(self._order())) if early is None else early

    def virtual_epochs(
        self, steps_per_epoch: int, *, rank: int | None = None, world_size: int | None = None
    ) -> VirtualEpochs:
        """Iterate over the data endlessly, in virtual epochs of exactly `steps_per_epoch` batches.

        The order continues where the last virtual epoch stopped. When all samples have been delivered, it starts over,
        reshuffled. Every batch is full. Ranks get different samples: by the sampler if that is distributed, else by
        `rank` and `world_size`, which default to the process group's. `state_dict` and `load_state_dict` of this loader
        save and restore the position. With other samplers and iterable datasets, ordinary epochs follow one another,
        and keep their own last batch and split over ranks.

        Example:
            >>> from itertools import islice
            >>> from feedline import Loader
            >>> loader = Loader(list(range(5)), 2)
            >>> [[batch.tolist() for batch in epoch] for epoch in islice(loader.virtual_epochs(2), 2)]
            [[[0, 1], [2, 3]], [[4, 0], [1, 2]]]
        """
        return VirtualEpochs(self, steps_per_epoch, rank, world_size)

    def state_dict(self) -> dict[str, Any]:
        """Return the training loop's position: after the batches it has received, not those prefetched.

        The state describes the iteration that started last. With feedline's samplers it is a few numbers, and you may
        change the number of workers, the number of ranks and the batch size before loading it. With other samplers,
        batches are counted and the sampler is replayed. The states of stateful datasets and samplers are included.

        Example:
            >>> from feedline import Loader
            >>> loader = Loader(list(range(6)), 2, shuffle=True, seed=1)
            >>> batches = iter(loader)
            >>> first = next(batches)
            >>> state = loader.state_dict()
            >>> other = Loader(list(range(6)), 2, shuffle=True, seed=1)
            >>> other.load_state_dict(state)
            >>> [batch.tolist() for batch in other] == [batch.tolist() for batch in batches]
            True
        """
        self._running.apply_pending()
        order = self._order()
        is_stream = reads_stream(order) and not repeats_itself(self.dataset)
        if is_stream and self._epochs.has_not_begun and not self._worker_count:
            self._running.early = self._iterate(order)  # the iterator's state is known only once it exists
        state = self._epochs.state(order, self._first_snapshot, self._opening, self._after_epoch)
        last = self._epochs.checkpoint
        faults = self._fault_budget.state(None if last is None else last.entry.progress.faults)
        return {**state, "faults": faults} if faults else state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume the next iteration where `state_dict` was taken.

        If ranks read their own shards and the number of ranks may have changed, give each rank the states of all:
        `feedline.merge_states`.

        Raises:
            BadState: the state is damaged, or from another version or from a loader with other data.
        """
        if isinstance(state_dict, dict) and not state_dict:  # not `== {}`: arrays compare elementwise
            warn_user(
                "The state is empty, so the next iteration begins where it would have begun without it. Give what "
                "state_dict() of a loader has returned; is its key in the checkpoint another one?",
                StateWarning,
            )
        ranks, share = _part_of(state_dict, "ranks"), share_if_known()
        own = ranks[share.rank] if isinstance(ranks, list) and len(ranks) == share.world_size else state_dict
        self._check_draws(_part_of(own, "order"))
        faults = _part_of(own, "faults")
        self._fault_budget.copy().restore(faults)  # a trial on a copy, before anything changes: it may be damaged
        self._epochs.load(state_dict, self._order())
        if state_dict:
            self._fault_budget.restore(faults)
            self._running.early = None
            self._iterator = None  # new workers, as with torchdata: the existing ones have moved on
        self._broadcast.forget_epoch()

    def _check_draws(self, order: Any) -> None:
        """Reject values that `_after_epoch` cannot have returned; the state may be anything."""

    def _after_epoch(self) -> dict[str, Any]:
        """Return the random state that the next epoch draws from, after an epoch has ended."""
        return {}

    def _opening(self, order: Order) -> tuple[dict[str, Any], ...]:
        """Return the dataset's state before the first batch of an epoch. New workers get the dataset unchanged."""
        if self._worker_count or reads_stream(order) or not is_stateful(self.dataset):
            return ()
        return ({"place": 0, "dataset": copy.deepcopy(self.dataset.state_dict()), "iterator": None},)

    def _first_snapshot(self, order: Order, epoch: int) -> Snapshot:
        """Return the state before the first batch of an epoch, and fix what that epoch would draw."""
        counted = {} if order.unit == "stream batches" else {"consumed": 0}
        return Snapshot(
            epoch,
            seed=order.seed_for(self._given.seed),
            draw_seed=self._fresh_seed() if self._given.seed is None else self._given.seed,
            order={**counted, **order.expected(), **order.settle()},
            dataset_epoch=self._broadcast.told_epoch,
        )

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, also on the sampler and the dataset if they have a `set_epoch`.

        Without this call, epochs count up from 0.
        """
        check_count("epoch", epoch, least=0)
        self._epochs.set_epoch(epoch)
        for sampler in {id(sampler): sampler for sampler in self._samplers()}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self._broadcast.call("set_epoch", epoch)

    def broadcast(self, name: str, *args: Any) -> None:
        """Call a method of the dataset in this process and in every worker.

        A worker makes the call after the batches already assigned to it, so the change shows after all batches in
        flight: about thirty if they are tiny. The next `next()` raises an exception that the call raised in a worker.

        Example:
            >>> from feedline import Loader
            >>> class Scaled(list):
            ...     scale = 1
            ...     def set_scale(self, scale):
            ...         self.scale = scale
            ...     def __getitem__(self, index):
            ...         return super().__getitem__(index) * self.scale
            >>> loader = Loader(Scaled([1, 2]), 2)
            >>> loader.broadcast("set_scale", 10)
            >>> [batch.tolist() for batch in loader]
            [[10, 20]]
        """
        self._broadcast.call(name, *args)


@dataclass
class Listener:
    """A callback that is called with a loader's stats at intervals."""

    loader: Callable[[], LoaderBase | None]
    callback: Callable[[Stats], object]
    every_s: float
    next_s: float = 0.0

    def call_if_due(self) -> None:
        """Call the callback if `every_s` has passed."""
        now_s = time.monotonic()
        loader = self.loader() if now_s >= self.next_s else None
        if loader is not None:
            self.next_s = now_s + self.every_s
            self.callback(loader.stats())

    def __reduce__(self) -> Any:
        return type(None), ()  # copies of the loader have no listener


def reads_stream(order: Order) -> bool:
    """True if the dataset is iterable."""
    return order.unit in ("stream batches", "stream samples")


def _part_of(state: Any, name: str) -> Any:
    """Return a part of a state, empty if `state` is no mapping: the code that reads the rest rejects that."""
    return state.get(name, {}) if isinstance(state, Mapping) else {}
