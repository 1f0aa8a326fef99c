"""What a loader keeps from epoch to epoch: its config, the position, the fault log, tuning, workers and memory.

`DataLoader` and `Loader` hold the arguments and have the public methods. Each has one `Session`, and a copy of a loader
has its own.
"""

from __future__ import annotations

import copy
import operator
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from feedline.abc.faults import ErrorPolicy
from feedline.abc.framework import Framework
from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.broadcast import Broadcast
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.state import Snapshot
from feedline.delivery.state.epochs import Epochs
from feedline.loader.config import LoaderConfig, attributes_of
from feedline.loader.resources import Resources
from feedline.order.order import Order
from feedline.order.rank_watch import RankWatch
from feedline.order.sharding import sharding_of
from feedline.system.references import References
from feedline.types import DatasetKind, Position, State, StreamSharding

if TYPE_CHECKING:
    from feedline.delivery.driver.tuning import Tuning
    from feedline.insight.stats import Stats
    from feedline.loader.live import LiveView

_LOOKS = 8
"""After so many iterations, whether ranks get the same samples is checked only after completed epochs: asking torch and
JAX for their process groups takes a tenth of `next(iter(loader))`.
"""

T = TypeVar("T", bound="Closable")


@dataclass
class Listener:
    """A callback that is called with a loader's stats at intervals."""

    stats: Callable[[], Stats | None]
    """Returns the stats; None if the loader is gone."""
    callback: Callable[[Stats], object]
    every_s: float
    next_s: float = 0.0

    def call_if_due(self) -> None:
        """Call the callback if `every_s` has passed."""
        now_s = time.monotonic()
        stats = self.stats() if now_s >= self.next_s else None
        if stats is not None:
            self.next_s = now_s + self.every_s
            self.callback(stats)


class Closable(Protocol):
    """An iteration of either loader."""

    def close(self) -> None: ...

    def apply_pending(self) -> None: ...


class Running:
    """The iterations of a loader that may still be in use."""

    def __init__(self) -> None:
        self._batches: References[Closable] = References()
        self._beginnings: set[object] = set()
        self.last_close = object()
        """A new object after every `close`."""

    def __reduce__(self) -> tuple[object, ...]:
        return Running, ()  # iterations stay with the loader that began them

    def create(self, make: Callable[[], T], give_back: Callable[[], None]) -> T:
        """Return the iteration that `make` creates. If `close` is called meanwhile, it is closed.

        Args:
            make: creates it. Many threads may do so at once.
            give_back: called at the end if `close` was called meanwhile, to release what `close` had to leave in use.
        """
        mark, last_close = object(), self.last_close
        self._beginnings.add(mark)
        try:
            batches = make()
            self._batches.add(batches)  # first: a `close` from now on finds it
            if self.last_close is not last_close:
                batches.close()
            return batches
        finally:
            self._beginnings.discard(mark)
            if self.last_close is not last_close:
                give_back()

    def is_beginning(self) -> bool:
        """True while a thread is creating an iteration."""
        return bool(self._beginnings)

    def apply_pending(self) -> None:
        """Apply pending `set_epoch()` calls to iterators that have not produced a batch yet."""
        for batches in self._batches:
            batches.apply_pending()

    def close(self) -> None:
        """End all iterations, including those that are being created."""
        self.last_close = object()  # first: see `create`
        for batches in self._batches:
            batches.close()


# Any, as a loader: one of either class, whose files import this one.
class Session:
    """The parts of a loader that outlive an epoch.

    Args:
        config: the loader's arguments.
        options: the fields of its config that were fixed when the loader was made.
        policy: how samples that fail are handled.
        framework: its array library.
        tuning: finds the number of workers; None if the user gave it.
    """

    resources: Resources
    """Workers, memory and measurements. A loader that was sent here has none until it is used."""

    def __init__(
        self,
        config: LoaderConfig,
        options: Mapping[str, Any],
        policy: ErrorPolicy,
        framework: Framework,
        tuning: Tuning | None,
    ) -> None:
        self.options = options
        self.tuning = tuning
        self.framework = framework
        self.fault_budget = FaultBudget(policy)
        self.epochs = Epochs()
        self.rank_watch = RankWatch()
        self.shows_epochs = os.environ.get("FEEDLINE_LIVE", "0") not in ("", "0")
        """True if the live view shows every epoch of the loader."""
        self.skips = 0
        """Batches that the next epoch leaves out, if a framework has delivered them before."""
        self._is_probed = False
        self._begin_empty()
        self.rebuilt(config)

    def _begin_empty(self) -> None:
        """Begin without workers, memory and iterations."""
        self._latest: tuple[tuple[object, ...], LoaderConfig] | None = None
        """The last config of the loader, and the attributes that it was made from."""
        self._spec: tuple[tuple[object, ...], WorkerSpec] | None = None
        """The spec of the last epoch, and what it was made of."""
        self._order: tuple[tuple[object, ...], Order] | None = None
        """The last order, and what it was made of."""
        self.running = Running()
        self._looks = _LOOKS
        self.listener: Listener | None = None
        """The callback given to `on_stats`."""
        self.view: LiveView | None = None
        """Writes what the loader does, if the loader is shown."""

    def __getstate__(self) -> dict[str, object]:
        kept = ("options", "tuning", "framework", "fault_budget", "epochs", "rank_watch", "shows_epochs", "skips")
        return {name: getattr(self, name) for name in (*kept, "_is_probed", "broadcast", "stream_sharding")}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._begin_empty()

    def copy(self) -> Session:
        """Return the session for a copy of the loader. `rebuilt` completes it."""
        twin = copy.copy(self)
        twin.epochs, twin.fault_budget = self.epochs.copy(), self.fault_budget.copy()
        if twin.epochs.is_loaded:  # the faults are a part of that state
            twin.fault_budget.restore(self.fault_budget.state())
        twin.tuning = None if self.tuning is None else self.tuning.copy()
        return twin

    def rebuilt(self, config: LoaderConfig, rank_watch: RankWatch | None = None) -> None:
        """Apply a dataset, samplers and other arguments that a framework has replaced in the loader."""
        self._latest = None
        self.broadcast = Broadcast(config.dataset)
        self.stream_sharding = self._stream_sharding(config)
        """How an iterable dataset is split; None if every worker has a stream of its own."""
        self.rank_watch = rank_watch or self.rank_watch
        self.resources = Resources(config)

    # -- the arguments -----------------------------------------------------------------------------------------------

    def config_of(self, loader: Any) -> LoaderConfig:
        """Return the loader's current config."""
        latest = self._latest  # a local copy: another thread may replace it
        attributes = None if self.tuning is not None else attributes_of(loader)
        if latest is not None and attributes is not None and all(map(operator.is_, attributes, latest[0])):
            return latest[1]
        config = self.new_config(loader)
        self._latest = None if attributes is None else (attributes, config)
        if "resources" not in vars(self):
            self.resources = Resources(config)
        return config

    def new_config(self, loader: Any) -> LoaderConfig:
        """Return a config of the loader as it is now, with the results of tuning.

        Raises:
            BadOption: the arguments do not fit together.
        """
        config: LoaderConfig = loader._feedline_config.of(loader, self.options)
        return config if self.tuning is None else self.tuning.applied_to(config)

    def set_options(self, **options: object) -> None:
        """Replace fields of the config that were fixed when the loader was made."""
        self.options, self._latest = {**self.options, **options}, None

    def _stream_sharding(self, config: LoaderConfig) -> StreamSharding | None:
        """Return how an iterable dataset is split over the current ranks."""
        return sharding_of(
            config.dataset,
            config.shard,
            batch_size=config.batch_size,
            drop_last=config.drop_last,
            is_map=config.is_map,
            shards_itself=config.shards_itself,
            share=None if config.data_rank is None else config.data_rank.share,
        )

    def order(self, config: LoaderConfig) -> Order:
        """Return the order of the loader's batches."""
        known = self.stream_sharding
        renewed = None if known is None else self._stream_sharding(config)  # with the current batch size
        if known is not None and renewed is not None:
            # With one rank, a process group may have been created since. A share that was found stays.
            self.stream_sharding = renewed if known.share.world_size == 1 else replace(renewed, share=known.share)
        parts = config.order_parts()
        if parts is None:
            return config.order_of(self.stream_sharding)
        last, made_of = self._order, (config, *parts)
        order = last[1] if last is not None and all(map(operator.is_, made_of, last[0])) else None
        if order is None:
            order = config.order_of(self.stream_sharding)
            self._order = made_of, order
        again = order.anew()
        if again is None:
            self._order = None
        return again or order

    def prepare(self, loader: Any, order: Order | None) -> tuple[Any, Order]:
        """Return the arguments and the order of an iteration that begins now; `order` replaces the loader's own."""
        config = self.refresh(loader)
        if order is None:
            order = self.epochs.order_of(self.order(config))
            last = self.epochs.checkpoint
            has_ended = last is not None and last.entry.progress.ended
            if self._looks or has_ended:
                self._looks = max(0, self._looks - 1)
                sharing = config.sharing(self.stream_sharding)
                if config.data_rank is not None:
                    sharing = sharing._replace(is_intended=True, is_split=False)
                self.rank_watch.begin(config.dataset, sharing, config.share, has_ended=has_ended)
        if self.skips and config.is_map:
            order = copy.copy(order)  # the next epoch may have the same
            order.skips, self.skips = order.skips + self.skips, 0
        return config, order

    def refresh(self, loader: Any) -> LoaderConfig:
        """Apply reassigned attributes; switch to processes if the dataset is found not reproducible on threads.

        Returns:
            The loader's config, after that.
        """
        config = self.config_of(loader)
        if self.tuning is not None and not self.tuning.is_begun:
            from feedline.delivery.driver import auto  # only for a loader with "auto"

            spec = self.spec(config, config.dataset, 0, config.init)
            auto.begin(self.tuning, config, spec, config.batch_size, has_indices=config.is_map)
            config = self.config_of(loader)
        if config.seed is not None and config.engine_name == "thread" and not self._is_probed:
            from feedline.workers.thread_safety import must_leave_threads

            self._is_probed = True
            if must_leave_threads(config.dataset, config.collate, is_map=config.is_map, batched=config.batched):
                self.set_options(engine="process")
                if self.tuning is not None:
                    self.tuning.engine = None
                config = self.config_of(loader)
        if config is not self.resources.config:
            if config != self.resources.config:
                self.resources = Resources(config)
            self.resources.config = config
        return config

    def made_of(self, config: LoaderConfig) -> tuple[object, ...]:
        """Return what workers are made of. Persistent workers are kept from epoch to epoch while it stays equal."""
        own = config.batched, config.drop_last, config.collate, config.init, config.placement
        return (config, *own, self.stream_sharding, self.fault_budget.policy)

    def spec(
        self,
        config: LoaderConfig,
        dataset: object,
        base_seed: int,
        init: Callable[[int], None] | None,
        shared_seed: int | None = None,
    ) -> WorkerSpec:
        """Return the spec for the workers."""
        fault_budget, placement = self.fault_budget, config.placement
        if config.reads_nothing:
            from feedline.collate.picked import NOTHING

            dataset = NOTHING
        made_of = (config, fault_budget.policy, self.stream_sharding, dataset, init, placement, shared_seed)
        # Without workers nobody reads the base seed, so the next epoch has the same spec, and can use the same runner.
        if not config.worker_count and self._spec is not None and all(map(operator.is_, made_of, self._spec[0])):
            return self._spec[1]
        spec = WorkerSpec(
            dataset=dataset,
            kind=DatasetKind.MAP if config.is_map else DatasetKind.ITERABLE,
            collate=config.collate,
            framework=self.framework,
            worker_count=config.max_workers,
            base_seed=base_seed,
            batched=config.batched,
            drop_last=config.drop_last,
            init=init,
            shared_seed=shared_seed,
            seeded=config.seed is not None,
            sharding=self.stream_sharding,
            on_error=fault_budget.policy if fault_budget.guards else None,
            placement=placement,
        )
        self._spec = None if config.worker_count else (made_of, spec)
        return spec

    # -- iterations and measurements ---------------------------------------------------------------------------------

    def close(self) -> None:
        """End iterations and workers, and free their memory."""
        self.running.close()
        self.free()

    def free(self) -> None:
        """Free the memory, if there is any; see `Resources.close`."""
        if "resources" in vars(self):
            self.resources.close(is_used=self.running.is_beginning())

    # -- the position ------------------------------------------------------------------------------------------------

    def state(self, loader: Any) -> State:
        """Return the position of the training loop; see `LoaderBase.state_dict`."""
        self.running.apply_pending()
        config = self.config_of(loader)
        order = self.order(config)
        state = self.epochs.state(
            order,
            lambda order, epoch: self._first_snapshot(config, order, epoch),
            draws=config.next_draws,
            dataset_epoch=self.broadcast.last_set_epoch,
            own=lambda: _own_state(config),
        )
        last = self.epochs.checkpoint
        faults = self.fault_budget.state(None if last is None else last.entry.progress.faults)
        from feedline.abc.description import description_of

        parts = {"dataset": description_of(config.dataset), "faults": faults}
        return {**state, **{name: part for name, part in parts.items() if part}}

    def load(self, config: LoaderConfig, state: object) -> None:
        """Resume the next iteration at a saved position; see `LoaderBase.load_state_dict`."""
        # torchdata: an empty state is none. Not `== {}`: arrays compare elementwise.
        is_empty = isinstance(state, dict) and not state
        snapshot = None if is_empty else Snapshot.from_dict(state)  # checked before any part of the state is read
        ranks, share = _part_of(state, "ranks"), config.share_now()
        own = ranks[share.rank] if isinstance(ranks, list) and len(ranks) == share.world_size else state
        config.check_draws(_part_of(own, "order"))
        any_rank = ranks[0] if isinstance(ranks, list) and ranks else state
        if isinstance(any_rank, Mapping) and "feedline" in any_rank:
            from feedline.abc.description import check_description, description_of

            check_description(any_rank.get("dataset"), description_of(config.dataset))
        faults = _part_of(own, "faults")
        self.fault_budget.copy().restore(faults)  # first on a copy, before anything changes: the state may be damaged
        if snapshot is not None:
            self.epochs.load(snapshot, self.order(config))
            self.fault_budget.restore(faults)
            self.broadcast.forget_epoch()

    def _first_snapshot(self, config: LoaderConfig, order: Order, epoch: int) -> Snapshot:
        """Return the state before the first batch of an epoch, and fix the seeds that the epoch would draw."""
        counted = {} if order.unit == "stream batches" else {"consumed": 0}
        seed = config.seed
        return Snapshot(
            epoch,
            seed=order.seed_for(seed),
            draw_seed=config.fresh_seed() if seed is None else seed,
            order={**counted, **order.expected(), **order.draw_next()},
        )

    def set_epoch(self, config: LoaderConfig, epoch: int) -> None:
        """Set the epoch of the next iteration, also on samplers and the dataset."""
        self.epochs.set_epoch(epoch)
        for sampler in {id(sampler): sampler for sampler in config.samplers()}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        if hasattr(config.dataset, "set_epoch"):
            self.broadcast.call("set_epoch", epoch)


def _own_state(config: LoaderConfig) -> tuple[Position, ...]:
    """Return the state of a dataset of which workers have no copy, before its first epoch."""
    if config.worker_count or not is_stateful(config.dataset):
        return ()
    return (Position(copy.deepcopy(config.dataset.state_dict()), is_before=not config.is_map),)


def _part_of(state: object, name: str) -> object:
    """Return a part of a state; empty if `state` is not a mapping, which the code that reads the rest rejects."""
    return state.get(name, {}) if isinstance(state, Mapping) else {}
