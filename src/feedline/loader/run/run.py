"""What a loader keeps from epoch to epoch: workers and memory, the position, the fault log, tuning.

`DataLoader` and `Loader` hold the arguments and have the public methods. Each has one `Run`, and passes it a view of
itself with every call.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from feedline.abc.description import check_description, description_of
from feedline.abc.error_policy import ErrorPolicy
from feedline.abc.framework import Framework
from feedline.abc.source import repeats_itself
from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.broadcast import Broadcast
from feedline.delivery.driver.caller_lock import Running
from feedline.delivery.driver.resources import Resources
from feedline.delivery.driver.settings import Settings
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.state import Snapshot
from feedline.delivery.state.epochs import Epochs
from feedline.insight.stats import Stats
from feedline.loader.arguments import Options
from feedline.loader.run.listener import Listener
from feedline.loader.run.view import LoaderView, V
from feedline.order.order import Order, reads_stream
from feedline.order.rank_watch import RankWatch
from feedline.order.sharding import sharding_of
from feedline.types import DatasetKind, State, StreamSharding
from feedline.types.ranks import share_if_known

if TYPE_CHECKING:
    from feedline.delivery.driver.tuning import Tuning

# object: a loader of either class.
adjusters: list[Callable[[object], None]] = []
"""Callbacks that get a loader before it fixes how batches are made. Used by `feedline tune --script`."""


class Run:
    """The parts of a loader that outlive an epoch.

    Args:
        view: the loader.
        options: its options.
        policy: how samples that fail are handled.
        framework: its array library.
        tuning: finds the number of workers; None if the user gave it.
    """

    def __init__(
        self, view: LoaderView, options: Options, policy: ErrorPolicy, framework: Framework, tuning: Tuning | None
    ) -> None:
        self.options = options
        self.tuning = tuning
        self.fault_budget = FaultBudget(policy)
        self.resources = Resources(self.settings(view), framework)
        self.epochs = Epochs()
        self.rank_watch = RankWatch()
        self.broadcast = _broadcast_to(view)
        self.running = Running()
        self.listener: Listener | None = None
        """The callback given to `on_stats`."""
        self.stream_sharding = self._stream_sharding(view)
        """How an iterable dataset is split; None if every worker has a stream of its own."""
        self.skips = 0
        """Batches that the next epoch leaves out, if a framework has delivered them before."""
        self._is_probed = False

    def copy(self, view: LoaderView) -> Run:
        """Return the run for a copy of the loader. It has no workers yet."""
        twin = copy.copy(self)
        twin.resources = Resources(self.resources.settings, self.resources.framework)
        twin.epochs, twin.fault_budget = self.epochs.copy(), self.fault_budget.copy()
        twin.broadcast, twin.running, twin.listener = _broadcast_to(view), Running(), None
        twin.tuning = None if self.tuning is None else self.tuning.copy()
        return twin

    def rebuilt(self, view: LoaderView, rank_watch: RankWatch | None = None) -> None:
        """Apply a dataset, samplers and other arguments that a framework has replaced in the loader."""
        self.resources = Resources(self.settings(view), self.resources.framework)
        self.broadcast = _broadcast_to(view)
        self.stream_sharding = self._stream_sharding(view)
        self.rank_watch = rank_watch or self.rank_watch

    # -- the arguments -----------------------------------------------------------------------------------------------

    def settings(self, view: LoaderView) -> Settings:
        """Return the settings for making batches, from the arguments and the results of tuning."""
        settings = view.settings()
        return settings if self.tuning is None else self.tuning.applied_to(settings)

    def _stream_sharding(self, view: LoaderView) -> StreamSharding | None:
        """Return how an iterable dataset is split over the current ranks."""
        return sharding_of(
            view.dataset,
            self.options.shard,
            batch_size=view.batch_size,
            drop_last=view.drop_last,
            is_map=view.is_map,
            shards_itself=view.shards_itself,
        )

    def order(self, view: LoaderView) -> Order:
        """Return the order of the loader's batches."""
        if self.stream_sharding is not None and self.stream_sharding.share.world_size == 1:
            self.stream_sharding = self._stream_sharding(view)  # the process group may have been created since
        return view.order_of(self.stream_sharding)

    def refresh(self, view: V) -> V:
        """Apply reassigned attributes; switch to processes if the dataset is found not reproducible on threads.

        Returns:
            The loader's arguments, after that.
        """
        for adjust in adjusters:
            adjust(view.loader)
            view = view.again()
        if self.tuning is not None and not self.tuning.is_begun:
            from feedline.delivery.driver import auto  # only for a loader with "auto"

            spec = self.spec(view, view.dataset, 0, view.init)
            auto.begin(self.tuning, self.settings(view), spec, view.batch_size, has_indices=view.is_map)
            view = view.again()
        settings = self.settings(view)
        if self.options.seed is not None and settings.engine_name == "thread" and not self._is_probed:
            from feedline.workers.thread_safety import must_leave_threads

            self._is_probed = True
            if must_leave_threads(view.dataset, view.collate, is_map=view.is_map, batched=view.batched):
                self.options = replace(self.options, engine="process")
                if self.tuning is not None:
                    self.tuning.engine = None
                view = view.again()
                settings = self.settings(view)
        if settings != self.resources.settings:
            self.resources = Resources(settings, self.resources.framework)
        return view

    def spec(
        self,
        view: LoaderView,
        dataset: object,
        base_seed: int,
        init: Callable[[int], None] | None,
        shared_seed: int | None = None,
    ) -> WorkerSpec:
        """Return the spec for the workers."""
        resources, fault_budget = self.resources, self.fault_budget
        return WorkerSpec(
            dataset=dataset,
            kind=DatasetKind.MAP if view.is_map else DatasetKind.ITERABLE,
            collate=view.collate,
            framework=resources.framework,
            worker_count=resources.settings.max_workers,
            base_seed=base_seed,
            batched=view.batched,
            drop_last=view.drop_last,
            init=init,
            shared_seed=shared_seed,
            seeded=resources.settings.seeded,
            sharding=self.stream_sharding,
            on_error=fault_budget.policy if fault_budget.guards else None,
            placement=view.placement,
        )

    def stats(self, view: LoaderView) -> Stats:
        """Return the measurements so far."""
        stats = self.resources.stats(self.fault_budget.log.counts())
        state = None if self.tuning is None else self.tuning.state
        return replace(stats, settings={**stats.settings, "batch_size": view.batch_size, "auto": state})

    # -- iterations --------------------------------------------------------------------------------------------------

    def begin(self, view: LoaderView) -> Iterator[object]:
        """Return the iterator for `iter(loader)`."""
        self.epochs.virtual = None
        last = self.epochs.checkpoint
        has_ended = last is not None and last.entry.progress.ended
        self.rank_watch.begin(view.dataset, view.sharing(self.stream_sharding), has_ended=has_ended)
        return self.next_epoch(view)

    def next_epoch(self, view: LoaderView) -> Iterator[object]:
        """Return a new iteration, or the one that `state` already started to find out its initial state."""
        early, self.running.early = self.running.early, None
        return view.loader._iterate(self.epochs.order_of(self.order(view))) if early is None else early

    def close(self) -> None:
        """Stop all iterations."""
        self.running.close()

    def give_back(self) -> None:
        """Free the memory; if an iterator is being created, do so after that."""
        self.resources.close(self.running.is_beginning)

    # -- the position ------------------------------------------------------------------------------------------------

    def state(self, view: LoaderView) -> State:
        """Return the position of the training loop; see `LoaderBase.state_dict`."""
        self.running.apply_pending()
        order = self.order(view)
        is_stream = reads_stream(order) and not repeats_itself(view.dataset)
        if is_stream and self.epochs.has_not_begun and not view.worker_count:
            self.running.early = view.loader._iterate(order)  # the iterator's state is known only once it exists
        state = self.epochs.state(
            order,
            lambda order, epoch: self._first_snapshot(view, order, epoch),
            lambda order: _opening(view, order),
            view.next_draws,
        )
        last = self.epochs.checkpoint
        faults = self.fault_budget.state(None if last is None else last.entry.progress.faults)
        parts = {"dataset": description_of(view.dataset), "faults": faults}
        return {**state, **{name: part for name, part in parts.items() if part}}

    def load(self, view: LoaderView, state: object) -> None:
        """Resume the next iteration at a saved position; see `LoaderBase.load_state_dict`."""
        ranks, share = _part_of(state, "ranks"), share_if_known()
        own = ranks[share.rank] if isinstance(ranks, list) and len(ranks) == share.world_size else state
        view.check_draws(_part_of(own, "order"))
        any_rank = ranks[0] if isinstance(ranks, list) and ranks else state
        if isinstance(any_rank, Mapping) and "feedline" in any_rank:
            check_description(any_rank.get("dataset"), description_of(view.dataset))
        faults = _part_of(own, "faults")
        self.fault_budget.copy().restore(faults)  # first on a copy, before anything changes: the state may be damaged
        self.epochs.load(state, self.order(view))
        if state:
            self.fault_budget.restore(faults)
            self.running.early = None
        self.broadcast.forget_epoch()

    def _first_snapshot(self, view: LoaderView, order: Order, epoch: int) -> Snapshot:
        """Return the state before the first batch of an epoch, and fix the seeds that the epoch would draw."""
        counted = {} if order.unit == "stream batches" else {"consumed": 0}
        seed = self.options.seed
        return Snapshot(
            epoch,
            seed=order.seed_for(seed),
            draw_seed=view.fresh_seed() if seed is None else seed,
            order={**counted, **order.expected(), **order.settle()},
            dataset_epoch=self.broadcast.last_set_epoch,
        )

    def set_epoch(self, view: LoaderView, epoch: int) -> None:
        """Set the epoch of the next iteration, also on samplers and the dataset."""
        self.epochs.set_epoch(epoch)
        for sampler in {id(sampler): sampler for sampler in view.samplers()}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        if hasattr(view.dataset, "set_epoch"):
            self.broadcast.call("set_epoch", epoch)


def _broadcast_to(view: LoaderView) -> Broadcast:
    return Broadcast(view.dataset, watches=view.worker_count > 0)


def _opening(view: LoaderView, order: Order) -> tuple[dict[str, object], ...]:
    """Return the dataset's state before the first batch of an epoch. New workers get the dataset unchanged."""
    if view.worker_count or reads_stream(order) or not is_stateful(view.dataset):
        return ()
    return ({"place": 0, "dataset": copy.deepcopy(view.dataset.state_dict()), "iterator": None},)


def _part_of(state: object, name: str) -> object:
    """Return a part of a state; empty if `state` is not a mapping, which the code that reads the rest rejects."""
    return state.get(name, {}) if isinstance(state, Mapping) else {}
