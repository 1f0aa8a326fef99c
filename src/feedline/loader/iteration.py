"""The iterator behind `iter(loader)`: an epoch or the rest of one, and the next epochs if workers are persistent.

Both loaders iterate through this. `TorchBatches` decides what the torch drop-in draws, and in which order.
"""

from __future__ import annotations

import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from feedline.abc.deferred import Target
from feedline.abc.sampler import draw_seed
from feedline.abc.stateful import check_restorable, restore_end, resumed_after
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.caller_lock import OneCallerBatches
from feedline.delivery.driver.inline_batches import InlineBatches
from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.delivery.state.epochs import Start
from feedline.frameworks.torch_compile import run_untraced
from feedline.loader.config import LoaderConfig
from feedline.loader.session import Listener, Session
from feedline.order.order import Entry, Order, reads_stream
from feedline.order.sharding import tail_of
from feedline.randomness.keys import epoch_key
from feedline.types import Key

if TYPE_CHECKING:
    from feedline.delivery.driver.batches import WorkerBatches
    from feedline.delivery.driver.device_batches import DeviceBatches
    from feedline.delivery.driver.driver import Driver, Prepare
    from feedline.delivery.driver.end_of_epoch import EndOfEpochSync
    from feedline.loader.base import LoaderBase
    from feedline.mesh.comparison import ComparedBatches

watchers: list[Callable[[LoaderBase], None]] = []
"""Callbacks that get a loader before each of its epochs starts. Used by `feedline profile`."""


class Seeds(NamedTuple):
    """The seeds that determine an epoch."""

    order: int | None
    """The seed of its order; None if the order has none of its own."""
    draw: int
    """The seed of its samples' random numbers."""


@run_untraced
class Iteration(Iterator[Any]):
    """One iterator of a loader, which holds it if the workers are persistent: so it holds neither loader nor session.

    Args:
        session: the session that it belongs to.
        config: the loader's arguments.
        order: which batches it delivers.
        loader: the loader.
        prepare: the last step applied to a batch.
        target: prepares batches for a device, if there is one.
    """

    _batches: InlineBatches | WorkerBatches
    _worker_batches: WorkerBatches | None = None
    """The same; None without workers."""
    _on_device: DeviceBatches | None = None
    _sync: EndOfEpochSync | None = None
    _compared: ComparedBatches | None = None
    _listener: Listener | None = None
    _shared_seed: int | None = None
    """For torch's data pipes."""
    begun: object
    """Another object for each iteration that begins with this iterator."""
    _made_of: tuple[object, ...] = ()
    """What the workers are made of; see `Session.made_of`."""

    def __init__(
        self,
        session: Session,
        config: LoaderConfig,
        order: Order,
        loader: LoaderBase,
        prepare: Prepare | None = None,
        target: Target | None = None,
    ) -> None:
        begun = time.monotonic_ns()
        self.begun = object()
        start = _start_of(session, config, order)
        self.seeds = self._enter(session, config, order, start, first=True)
        self.spec = self._spec(session, config, start)
        if not config.worker_count:
            checkpoint = self._checkpoint(session, config, order, start)
            self._batches = InlineBatches(
                self.spec,
                checkpoint,
                start.snapshot,
                session.resources,
                prepare,
                session.fault_budget,
            )
            session.epochs.begun(start, order, checkpoint)
        else:
            from feedline.delivery.driver.batches import WorkerBatches

            self._made_of = session.made_of(config)
            driver = session.resources.driver(self.spec, prepare, session.tuning)
            session.broadcast.join(driver)
            self._before_workers(session, config, order, start)
            self._batches = self._worker_batches = WorkerBatches(
                driver, self._beginning(session, config, order, start), persistent=config.persistent
            )
        self._source: OneCallerBatches | EndOfEpochSync | ComparedBatches = self._batches
        if target is not None:
            from feedline.delivery.driver.device_batches import DeviceBatches

            self._source = self._on_device = DeviceBatches(self._batches, target, session.fault_budget)
        share = None if config.is_map else tail_of(config.dataset, config.shard)
        if share is not None:
            from feedline.delivery.driver.end_of_epoch import EndOfEpochSync

            self._source = self._sync = EndOfEpochSync(self._source, self._batches, session.fault_budget, share)
        place = config.data_rank
        if place is not None and place.check and len(place.peers) > 1:
            from feedline.mesh.comparison import ComparedBatches

            fields: object = config.fields
            if fields and config.device_transform is not None:  # what it makes of them is not known by their names
                fields = config.device_transform
            losses = self._losses(session)
            self._source = self._compared = ComparedBatches(self._source, place, losses, start.epoch, fields)
        self._loader = weakref.ref(loader)
        """For those who are told that an epoch starts: a loader that was dropped has none."""
        self._restart_on_epoch_change(session, config, order)
        self._observe(session, config, start.epoch, begun)

    @abstractmethod
    def _enter(self, session: Session, config: Any, order: Order, start: Start, *, first: bool) -> Seeds:
        """Prepare dataset and order for an epoch, and draw its seeds."""

    @abstractmethod
    def _spec(self, session: Session, config: Any, start: Start) -> WorkerSpec:
        """Return the spec for the workers, and prepare the dataset for them."""

    def _announce(self, session: Session, config: LoaderConfig, order: Order, start: Start) -> None:
        """Notify the fault budget and the dataset that an epoch starts."""
        fault_budget, snapshot, dataset = session.fault_budget, start.snapshot, config.dataset
        if fault_budget.guards:  # with streams of their own, ranks may have different numbers of batches
            ranks = 1 if order.unit == "stream batches" else max(order.stride()[2], config.share_now().world_size)
            fault_budget.keeps_steps = ranks > 1 or config.data_rank is not None
        fault_budget.dataset = dataset if config.is_map else None
        fault_budget.counts_known = not order.endless
        fault_budget.begin_epoch(start.epoch, resumes=start.is_resumed)
        # feedline's own datasets always get `set_epoch()`; others only if a restored state has an epoch for them.
        broadcast, epoch = session.broadcast, None if snapshot is None else snapshot.dataset_epoch
        if config.is_epoch_aware:
            broadcast.call("set_epoch", start.epoch)
        elif epoch is not None and broadcast.last_set_epoch is None and hasattr(dataset, "set_epoch"):
            broadcast.call("set_epoch", epoch)

    def _before_workers(self, session: Session, config: Any, order: Order, start: Start) -> None:
        """Run after workers start and before their first task."""

    def _beginning(
        self, session: Session, config: LoaderConfig, order: Order, start: Start
    ) -> Callable[[Driver], None]:
        from feedline.delivery.driver.batches import new_epoch

        def begin(driver: Driver) -> None:
            checkpoint = self._checkpoint(session, config, order, start)
            epoch = new_epoch(
                driver.machine,
                config,
                self.spec,
                checkpoint,
                start.snapshot,
                shared_seed=self._shared_seed,
                fault_budget=session.fault_budget,
            )
            driver.begin_epoch(epoch)
            session.epochs.begun(start, order, checkpoint)

        return begin

    def can_continue(self, session: Session, config: LoaderConfig) -> bool:
        """True if there are workers that can make the batches of another epoch: they are made of the same arguments."""
        return not self.closed and self._made_of == session.made_of(config)

    def begin_again(self, session: Session, config: LoaderConfig, order: Order, *, inside: bool = False) -> None:
        """Start another epoch with the same workers, or the same epoch again if no batch of it was requested.

        Args:
            session: the session that it belongs to.
            config: the loader's arguments.
            order: which batches it delivers.
            inside: True if the caller is making a batch right now.
        """
        begun = time.monotonic_ns()
        if not inside:
            self.begun = object()
        start = _begin(session, config, order)
        self.seeds = self._enter(session, config, order, start, first=False)
        if self._worker_batches is not None:
            self._worker_batches.restart(self._beginning(session, config, order, start), inside=inside)
        else:
            self.spec = self._spec(session, config, start)
            checkpoint = self._checkpoint(session, config, order, start)
            assert isinstance(self._batches, InlineBatches)
            self._batches.begin(self.spec, checkpoint, start.snapshot)
            session.epochs.begun(start, order, checkpoint)
        if self._on_device is not None:
            self._on_device.begin()
        if self._sync is not None:
            self._sync.begin()
        if self._compared is not None:
            self._compared.begin(start.epoch)
        self._restart_on_epoch_change(session, config, order)
        self._observe(session, config, start.epoch, begun)

    def _observe(self, session: Session, config: LoaderConfig, epoch: int, begun: int) -> None:
        """Notify watchers, the observer and the live view that an epoch starts."""
        counters, loader = self._batches.counters, self._loader()
        for watch in watchers:
            if loader is not None:
                watch(loader)
        counters.observer.begin(epoch, begun, counters.batches)
        if session.shows_epochs or session.view is not None:
            from feedline.loader.live import show_epoch

            show_epoch(type(config.dataset).__name__, session)
        self._listener = session.listener

    def _restart_on_epoch_change(self, session: Session, config: LoaderConfig, order: Order) -> None:
        """Start over if the loader's epoch is changed before the first batch.

        Frameworks create the iterator first and then set the epoch. By then, workers may be busy with the wrong epoch.
        """
        epochs, checkpoint = session.epochs, session.epochs.checkpoint
        assert checkpoint is not None
        has_workers = bool(checkpoint.worker_count)
        calls_before = session.broadcast.set_epoch_count
        this = weakref.ref(self)
        # If the loader holds this iteration, the iteration must not keep its session alive.
        kept, reference = None if config.persistent else session, weakref.ref(session)

        def obey() -> None:
            session, iteration = kept or reference(), this()
            if session is None or epochs.checkpoint is not checkpoint:
                return
            checkpoint.dataset_epoch = session.broadcast.last_set_epoch
            session.rank_watch.first_batch(config.sharing(session.stream_sharding))
            was_called = session.broadcast.set_epoch_count != calls_before
            if iteration is not None and epochs.begins_again(order, set_epoch_was_called=was_called and has_workers):
                iteration.begin_again(session, config, order, inside=True)

        self._batches.at_first = obey

    def _losses(self, session: Session) -> Callable[[], tuple[int, tuple[str, ...]]]:
        """Return a function that returns how many delivered samples were skipped or replaced, and the last of them."""
        fault_budget, batches = session.fault_budget, self._batches

        def losses() -> tuple[int, tuple[str, ...]]:
            log = fault_budget.log
            mark = batches.checkpoint.entry.progress.faults
            return log.lost(None if mark is None else mark[-1])

        return losses

    def __next__(self) -> Any:
        if self._listener is not None:
            self._listener.call_if_due()
        return self._source.__next__()  # not next(): a signal could arrive after it

    def __getstate__(self) -> object:
        raise NotImplementedError(
            f"{type(self).__name__} cannot be pickled. Pickle the loader, and call iter() on the copy."
        )

    @property
    def closed(self) -> bool:
        """True if there are no workers any more."""
        return self._worker_batches is None or self._worker_batches.closed

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty with threads and without workers."""
        return [] if self._worker_batches is None else self._worker_batches.worker_pids

    def apply_pending(self) -> None:
        """See `OneCallerBatches.apply_pending`."""
        self._batches.apply_pending()

    @property
    def leaving(self) -> bool:
        """True once the iterator has been closed."""
        return self._source.leaving

    def close(self) -> None:
        """End this iterator and its workers; see `OneCallerBatches.close`."""
        self._source.close()

    def _checkpoint(self, session: Session, config: LoaderConfig, order: Order, start: Start) -> Checkpoint:
        seeds = self.seeds
        key = Key(seeds.draw if seeds.order is None else seeds.order, start.epoch)
        entry = Entry(key, epoch_key(seeds.draw, start.epoch), order_state(start))
        return Checkpoint(
            order,
            entry,
            seeds.draw,
            config.max_workers,
            config.batch_size or 1,
            dataset_epoch=session.broadcast.last_set_epoch,
            keeps_dataset=(config.persistent or not config.worker_count) and config.outlives_epoch,
            keeps_last=not config.repeats_itself,
        )


@run_untraced
class NumpyBatches(Iteration):
    """Iterate over the batches of a `feedline.Loader`."""

    def _enter(self, session: Session, config: LoaderConfig, order: Order, start: Start, *, first: bool) -> Seeds:
        self._announce(session, config, order, start)
        order.prepare(order_state(start))
        snapshot, seed = start.snapshot, config.seed
        ordered = snapshot.seed if snapshot is not None and snapshot.seed is not None else order.seed_for(seed)
        drawn = snapshot.draw_seed if snapshot is not None and snapshot.draw_seed is not None else seed
        if drawn is None:
            drawn = order.common_seed()
        return Seeds(ordered, draw_seed() if drawn is None else drawn)

    def _spec(self, session: Session, config: LoaderConfig, start: Start) -> WorkerSpec:
        return session.spec(config, config.dataset, epoch_key(self.seeds.draw, start.epoch) >> 1, config.init)


def order_state(start: Start) -> dict[str, object]:
    """Return the order's part of the loaded state; empty at the beginning."""
    return {} if start.snapshot is None else start.snapshot.order


def _begin(session: Session, config: LoaderConfig, order: Order) -> Start:
    """Return which epoch is next, and where this rank resumes with its current workers if a state was loaded."""

    def own(state: Snapshot) -> Snapshot:
        from feedline.delivery.state.ranks import own_snapshot  # only for a loaded state

        return own_snapshot(state, config.share_now(), config.max_workers, config.dataset)

    return session.epochs.begin(order, own)


def _start_of(session: Session, config: LoaderConfig, order: Order) -> Start:
    """Return how an iteration starts, after restoring the dataset's state from the previous epoch if it still applies.

    This happens before anything is drawn.
    """
    start = _begin(session, config, order)
    streams = () if start.before is None else start.before.streams
    if config.worker_count or len(streams) != 1:
        return start
    dataset, resume = config.dataset, streams[0].copied()
    if resume.dataset is not None:
        check_restorable(dataset)
        if reads_stream(order):
            resumed_after(dataset, resume.dataset)
        else:
            dataset.load_state_dict(resume.dataset)
    if resume.iterator is not None:
        restore_end(dataset, resume.iterator)
    assert start.snapshot is not None
    return start._replace(snapshot=replace(start.snapshot, streams=()))
