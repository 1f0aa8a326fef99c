"""What a loader keeps from epoch to epoch: workers and memory, the position, the fault log, tuning.

`DataLoader` and `Loader` hold the arguments and have the public methods. Each has one `Run`, which keeps the config of
its last epoch.
"""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from feedline.abc.description import check_description, description_of
from feedline.abc.error_policy import ErrorPolicy
from feedline.abc.framework import Framework
from feedline.abc.source import repeats_itself
from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.broadcast import Broadcast
from feedline.delivery.driver.caller_lock import Running
from feedline.delivery.driver.resources import Resources
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.state import Snapshot
from feedline.delivery.state.epochs import Epochs
from feedline.insight.stats import Stats
from feedline.loader.arguments import LIVE, Options
from feedline.loader.run.config import Config
from feedline.loader.run.listener import Listener
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


# Any, as a loader: one of either class, whose files import this one.
class Run:
    """The parts of a loader that outlive an epoch.

    Args:
        config: the loader's arguments.
        options: its options.
        policy: how samples that fail are handled.
        framework: its array library.
        tuning: finds the number of workers; None if the user gave it.
    """

    def __init__(
        self, config: Config, options: Options, policy: ErrorPolicy, framework: Framework, tuning: Tuning | None
    ) -> None:
        self.options = options
        self.tuning = tuning
        self.fault_budget = FaultBudget(policy)
        self.resources = Resources(config.settings, framework)
        self.epochs = Epochs()
        self.rank_watch = RankWatch()
        self.broadcast = Broadcast(config.dataset)
        self.running = Running()
        self.is_shown = os.environ.get(LIVE, "0") not in ("", "0")
        """True if the live view shows the loader whenever it runs."""
        self.listener: Listener | None = None
        """The callback given to `on_stats`."""
        self.stream_sharding = self._stream_sharding(config)
        """How an iterable dataset is split; None if every worker has a stream of its own."""
        self.skips = 0
        """Batches that the next epoch leaves out, if a framework has delivered them before."""
        self._is_probed = False
        self._config: Config | None = config
        self._spec: tuple[tuple[object, ...], WorkerSpec] | None = None
        """The spec of the last epoch, and what it was made of."""

    def copy(self, config: Config) -> Run:
        """Return the run for a copy of the loader. It has no workers yet."""
        twin = copy.copy(self)
        twin._config, twin._spec = config, None
        twin.resources = Resources(self.resources.settings, self.resources.framework)
        twin.epochs, twin.fault_budget = self.epochs.copy(), self.fault_budget.copy()
        twin.broadcast, twin.running, twin.listener = Broadcast(config.dataset), Running(), None
        twin.tuning = config.tuning
        return twin

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_config": None, "_spec": None}  # what is made from the loader anyway

    def rebuilt(self, config: Config, rank_watch: RankWatch | None = None) -> None:
        """Apply a dataset, samplers and other arguments that a framework has replaced in the loader."""
        self._config = config
        self.resources = Resources(config.settings, self.resources.framework)
        self.broadcast = Broadcast(config.dataset)
        self.stream_sharding = self._stream_sharding(config)
        self.rank_watch = rank_watch or self.rank_watch

    # -- the arguments -----------------------------------------------------------------------------------------------

    def config_of(self, loader: Any) -> Config:
        """Return the loader's current config."""
        config = self._config  # a local copy: another thread may replace it
        if config is None or not config.holds(loader, self.options, self.tuning):
            config = self._config = loader._feedline_config(loader, self.options, self.tuning)
        return config

    def _stream_sharding(self, config: Config) -> StreamSharding | None:
        """Return how an iterable dataset is split over the current ranks."""
        return sharding_of(
            config.dataset,
            self.options.shard,
            batch_size=config.batch_size,
            drop_last=config.drop_last,
            is_map=config.is_map,
            shards_itself=config.shards_itself,
        )

    def order(self, config: Config) -> Order:
        """Return the order of the loader's batches."""
        if self.stream_sharding is not None and self.stream_sharding.share.world_size == 1:
            self.stream_sharding = self._stream_sharding(config)  # the process group may have been created since
        return config.order_of(self.stream_sharding)

    def refresh(self, loader: Any) -> Config:
        """Apply reassigned attributes; switch to processes if the dataset is found not reproducible on threads.

        Returns:
            The loader's config, after that.
        """
        for adjust in adjusters:
            adjust(loader)
        config = self.config_of(loader)
        if self.tuning is not None and not self.tuning.is_begun:
            from feedline.delivery.driver import auto  # only for a loader with "auto"

            spec = self.spec(config, config.dataset, 0, config.init)
            auto.begin(self.tuning, config.settings, spec, config.batch_size, has_indices=config.is_map)
            config = self.config_of(loader)
        settings = config.settings
        if self.options.seed is not None and settings.engine_name == "thread" and not self._is_probed:
            from feedline.workers.thread_safety import must_leave_threads

            self._is_probed = True
            if must_leave_threads(config.dataset, config.collate, is_map=config.is_map, batched=config.batched):
                self.options = replace(self.options, engine="process")
                if self.tuning is not None:
                    self.tuning.engine = None
                config = self.config_of(loader)
                settings = config.settings
        if settings is not self.resources.settings and settings != self.resources.settings:
            self.resources = Resources(settings, self.resources.framework)
        return config

    def spec(
        self,
        config: Config,
        dataset: object,
        base_seed: int,
        init: Callable[[int], None] | None,
        shared_seed: int | None = None,
    ) -> WorkerSpec:
        """Return the spec for the workers."""
        resources, fault_budget, placement = self.resources, self.fault_budget, config.placement
        made_of = (config, resources, fault_budget.policy, self.stream_sharding, dataset, init, placement, shared_seed)
        # Without workers nobody reads the base seed, so the next epoch has the same spec, and can use the same runner.
        if not config.worker_count and self._spec is not None and all(map(operator.is_, made_of, self._spec[0])):
            return self._spec[1]
        spec = WorkerSpec(
            dataset=dataset,
            kind=DatasetKind.MAP if config.is_map else DatasetKind.ITERABLE,
            collate=config.collate,
            framework=resources.framework,
            worker_count=resources.settings.max_workers,
            base_seed=base_seed,
            batched=config.batched,
            drop_last=config.drop_last,
            init=init,
            shared_seed=shared_seed,
            seeded=resources.settings.seeded,
            sharding=self.stream_sharding,
            on_error=fault_budget.policy if fault_budget.guards else None,
            placement=placement,
        )
        self._spec = None if config.worker_count else (made_of, spec)
        return spec

    def stats(self, config: Config) -> Stats:
        """Return the measurements so far."""
        stats = self.resources.stats(self.fault_budget.log.counts())
        state = None if self.tuning is None else self.tuning.state
        return replace(stats, settings={**stats.settings, "batch_size": config.batch_size, "auto": state})

    # -- iterations --------------------------------------------------------------------------------------------------

    def begin(self, loader: Any) -> Iterator[object]:
        """Return the iterator for `iter(loader)`."""
        config = self.config_of(loader)
        self.epochs.virtual = None
        last = self.epochs.checkpoint
        has_ended = last is not None and last.entry.progress.ended
        self.rank_watch.begin(config.dataset, config.sharing(self.stream_sharding), config.share, has_ended=has_ended)
        return self.next_epoch(loader, config)

    def next_epoch(self, loader: Any, config: Config) -> Iterator[object]:
        """Return a new iteration, or the one that `state` already started to find out its initial state."""
        early, self.running.early = self.running.early, None
        return loader._iterate(self.epochs.order_of(self.order(config))) if early is None else early

    def close(self) -> None:
        """Stop all iterations."""
        self.running.close()

    def give_back(self) -> None:
        """Free the memory; if an iterator is being created, do so after that."""
        self.resources.close(self.running.is_beginning)

    # -- the position ------------------------------------------------------------------------------------------------

    def state(self, loader: Any) -> State:
        """Return the position of the training loop; see `LoaderBase.state_dict`."""
        self.running.apply_pending()
        config = self.config_of(loader)
        order = self.order(config)
        is_stream = reads_stream(order) and not repeats_itself(config.dataset)
        if is_stream and self.epochs.has_not_begun and not config.worker_count:
            self.running.early = loader._iterate(order)  # the iterator's state is known only once it exists
        state = self.epochs.state(
            order,
            lambda order, epoch: self._first_snapshot(config, order, epoch),
            lambda order: _opening(config, order),
            config.next_draws,
        )
        last = self.epochs.checkpoint
        faults = self.fault_budget.state(None if last is None else last.entry.progress.faults)
        parts = {"dataset": description_of(config.dataset), "faults": faults}
        return {**state, **{name: part for name, part in parts.items() if part}}

    def load(self, config: Config, state: object) -> None:
        """Resume the next iteration at a saved position; see `LoaderBase.load_state_dict`."""
        # torchdata: an empty state is none. Not `== {}`: arrays compare elementwise.
        is_empty = isinstance(state, dict) and not state
        snapshot = None if is_empty else Snapshot.from_dict(state)  # checked before any part of the state is read
        ranks, share = _part_of(state, "ranks"), share_if_known()
        own = ranks[share.rank] if isinstance(ranks, list) and len(ranks) == share.world_size else state
        config.check_draws(_part_of(own, "order"))
        any_rank = ranks[0] if isinstance(ranks, list) and ranks else state
        if isinstance(any_rank, Mapping) and "feedline" in any_rank:
            check_description(any_rank.get("dataset"), description_of(config.dataset))
        faults = _part_of(own, "faults")
        self.fault_budget.copy().restore(faults)  # first on a copy, before anything changes: the state may be damaged
        if snapshot is not None:
            self.epochs.load(snapshot, self.order(config))
            self.fault_budget.restore(faults)
            self.running.early = None
        self.broadcast.forget_epoch()

    def _first_snapshot(self, config: Config, order: Order, epoch: int) -> Snapshot:
        """Return the state before the first batch of an epoch, and fix the seeds that the epoch would draw."""
        counted = {} if order.unit == "stream batches" else {"consumed": 0}
        seed = self.options.seed
        return Snapshot(
            epoch,
            seed=order.seed_for(seed),
            draw_seed=config.fresh_seed() if seed is None else seed,
            order={**counted, **order.expected(), **order.settle()},
            dataset_epoch=self.broadcast.last_set_epoch,
        )

    def set_epoch(self, config: Config, epoch: int) -> None:
        """Set the epoch of the next iteration, also on samplers and the dataset."""
        self.epochs.set_epoch(epoch)
        for sampler in {id(sampler): sampler for sampler in config.samplers()}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        if hasattr(config.dataset, "set_epoch"):
            self.broadcast.call("set_epoch", epoch)


def _opening(config: Config, order: Order) -> tuple[dict[str, object], ...]:
    """Return the dataset's state before the first batch of an epoch. New workers get the dataset unchanged."""
    if config.worker_count or reads_stream(order) or not is_stateful(config.dataset):
        return ()
    return ({"place": 0, "dataset": copy.deepcopy(config.dataset.state_dict()), "iterator": None},)


def _part_of(state: object, name: str) -> object:
    """Return a part of a state; empty if `state` is not a mapping, which the code that reads the rest rejects."""
    return state.get(name, {}) if isinstance(state, Mapping) else {}
