"""What a loader keeps from epoch to epoch: workers, memory and measurements, the position, the fault log, tuning.

`DataLoader` and `Loader` hold the arguments and have the public methods. Each has one `Session`, and a copy of a loader
has its own.
"""

from __future__ import annotations

import copy
import operator
import os
import random
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from feedline.abc.engine import Engine
from feedline.abc.faults import ErrorPolicy
from feedline.abc.framework import Framework
from feedline.abc.source import check_description, description_of, repeats_itself
from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.broadcast import Broadcast
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.state import Snapshot
from feedline.delivery.state.epochs import Epochs
from feedline.insight.observer import Observer
from feedline.loader.arguments import LIVE
from feedline.loader.config import LoaderConfig, attributes_of
from feedline.order.order import Order, SampleOrder, reads_stream
from feedline.order.rank_watch import RankWatch
from feedline.order.sharding import sharding_of
from feedline.system import interrupts
from feedline.system.limits import memory_limit, usable_cores
from feedline.system.ranks import local_rank_count, share_if_known
from feedline.system.references import References
from feedline.system.timing import TaskCpu
from feedline.types import DatasetKind, Position, State, StreamSharding
from feedline.workers import abilities
from feedline.workers.runner import Runner

if TYPE_CHECKING:
    from feedline.delivery.driver.driver import Driver, Prepare
    from feedline.delivery.driver.memory_watch import MemoryWatch
    from feedline.delivery.driver.tuning import Tuning
    from feedline.insight.stats import Stats
    from feedline.loader.live import LiveView
    from feedline.memory.arena import Arena

_SLOTS_PER_WINDOW = 16
_SPARE_SLOTS = 16
_MOST_SLOTS = 1024
"""Slots are cheap (address space and a few list entries). More of them let other batches get further ahead of a late
one, and let the training loop keep more batches before they are copied.
"""

_FEW_SLOTS = 8
"""Slots that may be in use before the size of a batch is known, if the user set no budget."""

_LOOKS = 8
"""After so many iterations, whether ranks get the same samples is checked only after completed epochs: asking torch and
JAX for their process groups takes a tenth of `next(iter(loader))`.
"""

T = TypeVar("T", bound="Closable")

# object: a loader of either class.
adjusters: list[Callable[[object], None]] = []
"""Callbacks that get a loader before it fixes how batches are made. Used by `feedline tune --script`."""


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
        self.early: Iterator[object] | None = None
        """An iteration that was started before the first `iter(loader)`."""
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
        self.early = None
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

    counters: Counters
    """Event counts and measurements since the workers were last changed."""
    watch: Callable[[], MemoryWatch | None]
    """The watch of the workers that were started last, while they exist."""

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
        self.shows_epochs = os.environ.get(LIVE, "0") not in ("", "0")
        """True if the live view shows every epoch of the loader."""
        self.skips = 0
        """Batches that the next epoch leaves out, if a framework has delivered them before."""
        self._is_probed = False
        self._begin_empty()
        self.rebuilt(config)

    def _begin_empty(self) -> None:
        """Begin without workers, memory and iterations."""
        self.config: LoaderConfig | None = None
        """What memory and measurements belong to; None in a loader that was sent here, until it is used."""
        self._latest: tuple[tuple[object, ...], LoaderConfig] | None = None
        """The last config of the loader, and the attributes that it was made from."""
        self._spec: tuple[tuple[object, ...], WorkerSpec] | None = None
        """The spec of the last epoch, and what it was made of."""
        self._order: tuple[tuple[object, ...], Order] | None = None
        """The last order, if it keeps nothing from epoch to epoch, and what it was made of."""
        self.running = Running()
        self._looks = _LOOKS
        self.listener: Listener | None = None
        """The callback given to `on_stats`."""
        self.view: LiveView | None = None
        """Writes what the loader does, if the loader is shown."""
        self._arena: Arena | None = None
        self._given_up: list[Arena] = []
        """Memory to close once no other thread is starting workers with it."""
        self._reset(None)

    def _reset(self, config: LoaderConfig | None) -> None:
        """Start over with memory and measurements, for this config. Iterations under way keep the old ones."""
        self.config, self._arena = config, None
        in_order = config is None or config.make_scheduler().in_order
        self.counters = Counters(observer=Observer(in_order=in_order))
        self._user = _User()
        self._cpu = TaskCpu()
        """CPU time of batches that are made in the training loop itself."""
        self._runners: list[tuple[WorkerSpec, Runner, weakref.ref[object]]] = []
        """What made batches in the training loop itself: the spec, the runner, and the iteration that used it last. At
        most one.
        """
        self.watch = _no_watch
        self._tuned: Tuning | None = None
        """What changes the number of workers that were started last."""
        if config is not None and config.worker_count and config.engine_name != "ray":
            _import_engine(config)  # now, not while the loop waits for the first batch

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
        twin.tuning = None if self.tuning is None else self.tuning.copy()
        return twin

    def rebuilt(self, config: LoaderConfig, rank_watch: RankWatch | None = None) -> None:
        """Apply a dataset, samplers and other arguments that a framework has replaced in the loader."""
        self._latest = None
        self.broadcast = Broadcast(config.dataset)
        self.stream_sharding = self._stream_sharding(config)
        """How an iterable dataset is split; None if every worker has a stream of its own."""
        self.rank_watch = rank_watch or self.rank_watch
        self._reset(config)

    # -- the arguments -----------------------------------------------------------------------------------------------

    def config_of(self, loader: Any) -> LoaderConfig:
        """Return the loader's current config."""
        latest = self._latest  # a local copy: another thread may replace it
        attributes = None if self.tuning is not None else attributes_of(loader)
        if latest is not None and attributes is not None and all(map(operator.is_, attributes, latest[0])):
            return latest[1]
        config = self.new_config(loader)
        self._latest = None if attributes is None else (attributes, config)
        if self.config is None:
            self._reset(config)
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
        )

    def order(self, config: LoaderConfig) -> Order:
        """Return the order of the loader's batches."""
        if self.stream_sharding is not None and self.stream_sharding.share.world_size == 1:
            self.stream_sharding = self._stream_sharding(config)  # the process group may have been created since
        parts = config.order_parts()
        if parts is None:
            return config.order_of(self.stream_sharding)
        last, made_of = self._order, (config, *parts)
        if last is not None and all(map(operator.is_, made_of, last[0])):
            return last[1]
        order = config.order_of(self.stream_sharding)
        if type(order) is SampleOrder:
            self._order = made_of, order
        return order

    def refresh(self, loader: Any) -> LoaderConfig:
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
            auto.begin(self.tuning, config, spec, config.batch_size, has_indices=config.is_map)
            config = self.config_of(loader)
        if config.seeded and config.engine_name == "thread" and not self._is_probed:
            from feedline.workers.thread_safety import must_leave_threads

            self._is_probed = True
            if must_leave_threads(config.dataset, config.collate, is_map=config.is_map, batched=config.batched):
                self.set_options(engine="process")
                if self.tuning is not None:
                    self.tuning.engine = None
                config = self.config_of(loader)
        if config is not self.config:
            if config != self.config:
                self._reset(config)
            self.config = config
        return config

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
            seeded=config.seeded,
            sharding=self.stream_sharding,
            on_error=fault_budget.policy if fault_budget.guards else None,
            placement=placement,
        )
        self._spec = None if config.worker_count else (made_of, spec)
        return spec

    # -- iterations --------------------------------------------------------------------------------------------------

    def begin(self, loader: Any) -> Iterator[object]:
        """Return the iterator for `iter(loader)`."""
        config = self.config_of(loader)
        self.epochs.virtual = None
        last = self.epochs.checkpoint
        has_ended = last is not None and last.entry.progress.ended
        if self._looks or has_ended:
            self._looks = max(0, self._looks - 1)
            sharing = config.sharing(self.stream_sharding)
            self.rank_watch.begin(config.dataset, sharing, config.share, has_ended=has_ended)
        return self.next_epoch(loader, config)

    def next_epoch(self, loader: Any, config: LoaderConfig) -> Iterator[object]:
        """Return a new iteration, or the one that `state` already started to find out its initial state."""
        early, self.running.early = self.running.early, None
        return loader._iterate(self.epochs.order_of(self.order(config))) if early is None else early

    def create(self, make: Callable[[], T]) -> T:
        """Return the iteration that `make` creates; see `Running.create`."""
        return self.running.create(make, self.give_back)

    # -- workers and memory ------------------------------------------------------------------------------------------

    def arena(self) -> Arena | None:
        """Return the loader's memory; a new one in a forked process.

        None if the system does not support such memory: each batch then has memory of its own.
        """
        config = self.config
        assert config is not None
        shared = config.engine_name == "process"
        if not (abilities.can_share_arenas() if shared else abilities.can_map_sparsely()):
            return None
        arena = self._arena
        if arena is None or arena.pid != os.getpid():
            from feedline.memory.arena import Arena

            count = min(_MOST_SLOTS, config.most_window * _SLOTS_PER_WINDOW + _SPARE_SLOTS)
            workers = max(1, config.worker_count)
            with interrupts.put_off(starts_process=False):  # otherwise a file could stay open without an owner
                arena = Arena(
                    count,
                    shared=shared,
                    budget=config.budget_bytes(),
                    window=config.window,
                    before_known=workers if config.memory_budget is not None else max(workers, _FEW_SLOTS),
                )
                if config.pin:
                    from feedline.device.pinning import SlotPinner

                    SlotPinner(arena)
                arena.serve(self._user)
                self._arena = arena
        return arena

    def take_runner(self, spec: WorkerSpec, user: object) -> Runner:
        """Return what makes batches in the training loop itself: the one that was kept, if nobody else uses it now.

        Args:
            spec: what it needs to know.
            user: the iteration that will use it.
        """
        try:
            last_spec, runner, last_user = self._runners.pop()  # in one step: several threads may come here
        except IndexError:
            last_spec = None
        if last_spec is not spec or last_user() not in (None, user):
            runner = Runner(spec, None)
            runner.cpu = self._cpu
        return runner

    def keep_runner(self, spec: WorkerSpec, runner: Runner, user: object) -> None:
        """Keep a runner that remembers nothing of its epoch, for the next one."""
        self._runners[:] = [(spec, runner, weakref.ref(user))]

    def driver(self, spec: WorkerSpec, prepare: Prepare | None) -> Driver:
        """Start workers; with tuning, as many as it decides, now and later."""
        from feedline.delivery.driver.driver import Driver
        from feedline.delivery.driver.memory_watch import MemoryWatch
        from feedline.delivery.driver.slots import Slots
        from feedline.delivery.driver.tuning import TunedDriver
        from feedline.delivery.machine.machine import Machine
        from feedline.delivery.machine.recovery import Recovery, RecoveryOptions

        tuning = self._tuned = self.tuning
        engine, arena = self._engine()
        memory, config = self._arena, self.config  # copies: `close` in another thread clears the memory
        assert config is not None
        slots = Slots(arena, self.framework, self.counters, depth=max(1, config.depth), has_space=engine.has_space)
        options = RecoveryOptions(
            spec.on_error,
            spec.dataset,
            spec.batched,
            searches=not is_stateful(spec.dataset),
            restarts=config.restart_budget,
            wall_s=time.time,
            chance=random.Random().random,
        )
        machine = Machine(
            engine.worker_count,
            slots,
            Recovery(options),
            self.counters,
            moves=config.moves,
            now_s=time.monotonic(),
            most=config.most_workers,
        )
        # Create the driver first: it closes the engine when dropped, so no worker is ever left behind.
        watch = MemoryWatch(engine, config.worker_bytes)
        self.watch = weakref.ref(watch)
        is_tuned = tuning is not None and tuning.is_under_way
        driver = (TunedDriver if is_tuned else Driver)(
            engine,
            machine,
            slots,
            watch=watch,
            prepare=prepare,
            rest=None if memory is None else memory.rest,
            dataset=spec.dataset if spec.kind is DatasetKind.ITERABLE and spec.sharding is None else None,
        )
        if isinstance(driver, TunedDriver) and tuning is not None:
            driver.tuning = tuning
        try:
            engine.open(spec)
        except BaseException:  # Ctrl-C too
            driver.close()
            raise
        return driver

    def _engine(self) -> tuple[Engine, Arena | None]:
        config = self.config
        assert config is not None
        if config.engine_name == "ray":
            from feedline.workers.ray.engine import RayEngine

            return RayEngine(self.worker_count, config.ray, config.memory_budget), None
        arena = self.arena()
        if config.engine_name == "thread":
            from feedline.workers.threads import ThreadEngine

            return ThreadEngine(self.worker_count, arena), None
        from feedline.workers.processes.engine import ProcessEngine

        return ProcessEngine(self.worker_count, arena, config.context), arena

    @property
    def worker_count(self) -> int:
        """The number of workers, also before they are started."""
        assert self.config is not None
        return self.config.worker_count if self._tuned is None else self._tuned.count

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers that were started last and are alive."""
        watch = self.watch()
        return [] if watch is None else watch.pids()

    def give_back(self) -> None:
        """Free the memory; batches that are still held stay valid. If an iterator is being created, do so after that.

        A thread that is starting workers with the memory keeps it, and closes it later.
        """
        arena, self._arena = self._arena, None  # first: an iteration that begins from now on creates another one
        if arena is not None:
            self._given_up.append(arena)
        if self.running.is_beginning():
            return
        given_up, self._given_up = self._given_up, []
        for arena in given_up:
            arena.close()

    # -- measurements ------------------------------------------------------------------------------------------------

    def stats(self, config: LoaderConfig) -> Stats:
        """Return the measurements so far; `config` is the loader's."""
        from feedline.insight.period import period_of
        from feedline.insight.stats import Stats

        counters, arena, workers = self.counters, self._arena, self.worker_count
        epoch, last, total = counters.observer.totals(counters.batches)
        everything = period_of(total, workers)
        watch = self.watch()
        used = self.config
        assert used is not None
        return Stats(
            epoch=period_of(epoch, workers),
            last_epoch=None if last is None else period_of(last, workers),
            total=everything,
            counters={
                "engine": used.engine_name,
                "workers": workers,
                **counters.as_dict(),
                "overflowed_batches": counters.overflowed + (0 if arena is None else arena.refused),
                "arena_bytes": 0 if arena is None else arena.resident_bytes,
                "leased_slots": 0 if arena is None else arena.leased_count,
                "wait_s": everything.wait_s,
                "faults": self.fault_budget.log.counts(),
            },
            settings={
                "engine": used.engine_name,
                "workers": workers,
                "prefetch": used.depth if self._tuned is None else self._tuned.depth,
                "in_order": used.make_scheduler().in_order,
                "moves": used.moves,
                "persistent": used.persistent,
                "pin": used.pin,
                "memory_budget": used.memory_budget,
                "cores": usable_cores(),
                "memory_limit": memory_limit() if hasattr(os, "sysconf") else None,
                "local_ranks": local_rank_count(),
                "batch_size": config.batch_size,
                "auto": None if self.tuning is None else self.tuning.state,
            },
            slowest_samples=counters.observer.slowest(),
            memory=() if watch is None else tuple(watch.memory()),
            settled=None if (settled := counters.observer.settled(total)) is None else period_of(settled, workers),
        )

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

    def load(self, config: LoaderConfig, state: object) -> None:
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

    def _first_snapshot(self, config: LoaderConfig, order: Order, epoch: int) -> Snapshot:
        """Return the state before the first batch of an epoch, and fix the seeds that the epoch would draw."""
        counted = {} if order.unit == "stream batches" else {"consumed": 0}
        seed = config.seed
        return Snapshot(
            epoch,
            seed=order.seed_for(seed),
            draw_seed=config.fresh_seed() if seed is None else seed,
            order={**counted, **order.expected(), **order.settle()},
            dataset_epoch=self.broadcast.last_set_epoch,
        )

    def set_epoch(self, config: LoaderConfig, epoch: int) -> None:
        """Set the epoch of the next iteration, also on samplers and the dataset."""
        self.epochs.set_epoch(epoch)
        for sampler in {id(sampler): sampler for sampler in config.samplers()}.values():
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        if hasattr(config.dataset, "set_epoch"):
            self.broadcast.call("set_epoch", epoch)


class _User:
    """Keeps memory open that fits the current config, for as long as the session has it."""


def _no_watch() -> None:
    return None


def _import_engine(config: LoaderConfig) -> None:
    """Import what a loader with workers needs."""
    import feedline.delivery.driver.tuning

    if config.engine_name == "thread":
        import feedline.workers.threads
    elif abilities.can_share_arenas():
        import feedline.workers.processes.arena
        import feedline.workers.processes.engine  # noqa: F401


def _opening(config: LoaderConfig, order: Order) -> tuple[Position, ...]:
    """Return the dataset's state before the first batch of an epoch. New workers get the dataset unchanged."""
    if config.worker_count or reads_stream(order) or not is_stateful(config.dataset):
        return ()
    return (Position(copy.deepcopy(config.dataset.state_dict())),)


def _part_of(state: object, name: str) -> object:
    """Return a part of a state; empty if `state` is not a mapping, which the code that reads the rest rejects."""
    return state.get(name, {}) if isinstance(state, Mapping) else {}
