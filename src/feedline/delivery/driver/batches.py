"""Batches made by workers, and how an epoch with workers begins."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from feedline.abc.source import Acknowledged, ShardedSource
from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.config import Config
from feedline.delivery.driver.caller_lock import OneCallerBatches
from feedline.delivery.driver.driver import Driver
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.epoch import Epoch, Limits, Requests
from feedline.delivery.machine.fault_budget import FaultBudget
from feedline.delivery.machine.machine import Machine
from feedline.delivery.machine.own_streams import OwnStreams
from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.errors import BadState, WorkerError
from feedline.order.plan import Progress
from feedline.order.streams import StreamPlan
from feedline.system import interrupts
from feedline.system.failures import is_interrupt, twin_of
from feedline.system.shown import counted
from feedline.types import DatasetKind, Position, ResultKind

BeginEpoch = Callable[[Driver], None]


def new_epoch(
    machine: Machine,
    settings: Config,
    spec: WorkerSpec,
    checkpoint: Checkpoint,
    snapshot: Snapshot | None,
    *,
    shared_seed: int | None = None,
    fault_budget: FaultBudget | None = None,
) -> Epoch:
    """Return a pass over a dataset, or the rest of one, for the machine to begin."""
    entry = checkpoint.entry
    depth = max(1, settings.depth)
    is_free = settings.is_free or _is_gathered(spec)
    runs_ahead = is_free or not settings.persistent  # a worker that lives on keeps what its dataset remembers
    limits = Limits(
        depth * len(machine.flights.active),
        depth,
        deepens=settings.deepens and runs_ahead,
        moves=settings.moves,
        runs_ahead=runs_ahead,
        # A stream counts its epochs, not its batches; a feed delivers again what was not acknowledged.
        takes_back=(is_free and spec.kind is DatasetKind.MAP) or isinstance(spec.dataset, Acknowledged),
        # When slots come free depends on timing.
        waits_for_slots=runs_ahead or settings.memory_budget is not None or settings.engine_name == "ray",
        timeout_s=settings.timeout_s,
        kills_stuck=bool(settings.restarts),
    )
    streams, progress = () if snapshot is None else snapshot.streams, entry.progress
    if snapshot is not None:
        progress.turn = snapshot.turn
        progress.early.update(snapshot.early)
    restores, before = bool(streams), machine.flights.epoch
    if before is not None and not streams:
        streams = before.checkpoint.outlasting()
        # Otherwise workers are ahead of what was delivered, or have not read a shared stream to its end.
        is_there = before.is_complete and (spec.sharding is None or all(each.dataset is None for each in streams))
        restores = bool(streams) and not is_there
    assert checkpoint.plan is not None
    progress.positions.update(_positions(spec, streams, len(machine.flights.workers)))
    snapshot_every = settings.snapshot_every
    if not isinstance(checkpoint.plan, StreamPlan):
        snapshot_every = 1 if spec.sharding is not None or is_stateful(spec.dataset) else 0
    epoch = (OwnStreams if isinstance(checkpoint.plan, StreamPlan) else Epoch)(
        checkpoint.plan,
        settings.make_scheduler(),
        limits,
        progress,
        Requests(
            spec.batched,
            stream_count=checkpoint.batch_size if spec.kind is DatasetKind.ITERABLE else 0,
            snapshot_every=snapshot_every,
            shared_seed=shared_seed,
        ),
        fault_budget,
        entry.key.epoch,
        restores=restores,
    )
    epoch.checkpoint = checkpoint
    return epoch


def _is_gathered(spec: WorkerSpec) -> bool:
    """True if batches are cut from arrays: no code of the user runs in a worker that could see which it has made."""
    is_plain = spec.kind is DatasetKind.MAP and spec.batched and spec.init is None
    return is_plain and spec.framework.gather_for(spec.dataset, spec.collate) is not None


def _positions(spec: WorkerSpec, streams: Sequence[Position], worker_count: int) -> dict[int, Position]:
    """Return where each worker begins the epoch."""
    if spec.sharding is not None:  # every worker reads the same stream, so any state of it will do
        return dict.fromkeys(range(worker_count), streams[0]) if streams else {}
    count = len(streams)
    if count in (0, worker_count):
        return dict(enumerate(streams))
    or_else = ""
    if spec.kind is DatasetKind.ITERABLE and not isinstance(spec.dataset, ShardedSource):
        or_else = ", or let the loader distribute the samples (shard=True): then the number of workers may change"
    raise BadState(
        f"The state was saved with {counted(count, 'worker')}, each with its own state of the dataset or stream, but "
        f"there {'is' if worker_count == 1 else 'are'} {worker_count} now. Use {counted(count, 'worker')}{or_else}."
    )


def _freeze(checkpoints: list[Checkpoint]) -> None:
    for checkpoint in checkpoints:
        interrupts.see_through(checkpoint.freeze)


class WorkerBatches(OneCallerBatches):
    """Batches made by workers.

    The workers end with the epoch, or with this object if they are persistent; in both cases also when the object is
    dropped, or the program ends.
    """

    def __init__(self, driver: Driver, begin_epoch: BeginEpoch, *, persistent: bool) -> None:
        super().__init__(driver.caller_lock)
        self.driver = driver
        self._persistent = persistent
        self._ended = False
        self._death: BaseException | None = None
        self._finalizer = weakref.finalize(self, interrupts.see_through, driver.close)
        self._checkpoints: list[Checkpoint] = []
        weakref.finalize(self, _freeze, self._checkpoints).atexit = False
        try:
            begin_epoch(driver)
            self._checkpoints[:] = [driver.epoch.checkpoint]
            driver.engine.start()
        except BaseException:
            driver.close()
            raise

    @property
    def closed(self) -> bool:
        """True if the workers are gone or unusable, or belong to the process that this one was forked from."""
        torn = self._is_torn and self._caller_lock.owner is None
        return torn or self.leaving or self.driver.closed or self.driver.pid != os.getpid()

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the workers; empty for threads."""
        return [] if self.driver.closed else self.driver.engine.pids

    # Any: processes or threads.
    @property
    def worker_objects(self) -> list[Any]:
        """See `Engine.worker_objects`."""
        return self.driver.engine.worker_objects

    @property
    def checkpoint(self) -> Checkpoint:
        """Records the position of the training loop."""
        checkpoint: Checkpoint = self.driver.epoch.checkpoint
        return checkpoint

    @property
    def progress(self) -> Progress:
        """The position in the epoch."""
        return self.driver.epoch.progress

    @property
    def counters(self) -> Counters:
        """Event counts so far."""
        return self.driver.counters

    def is_ready(self) -> bool:
        """True if the next batch has already arrived; in the thread that requests batches."""
        usable = not (self._is_torn or self._ended or self.leaving or self.driver.closed) and self._death is None
        if not usable or self.at_first is not None:
            return False
        if self.driver.epoch.due() is None:
            self._caller_lock.run("next()", self._poll)
        return self.driver.epoch.due() is not None

    def _poll(self) -> None:
        if not self.driver.closed:
            self._is_torn = True
            self.driver.poll()
            self._is_torn = False

    def ready_count(self) -> int:
        return sum(result.kind is ResultKind.DONE for result in self.driver.epoch.ready.values())

    def restart(self, begin_epoch: BeginEpoch, *, inside: bool = False) -> None:
        """Begin another epoch with the same workers; `inside` if the caller holds the lock, as in `at_first`."""
        if inside:
            self._restart(begin_epoch)
        else:
            self._caller_lock.run("iter(loader)", lambda: self._restart(begin_epoch))

    def _restart(self, begin_epoch: BeginEpoch) -> None:
        driver = self.driver
        self._is_torn = True
        try:
            driver.leave_epoch()
            self._ended = True  # until the new epoch has begun
            self.ending = None
            begin_epoch(driver)
        except BaseException as exc:
            if is_interrupt(exc):
                self._let_go()
            else:
                self._is_torn = False
            raise
        self._checkpoints[:] = [driver.epoch.checkpoint]
        self._ended = self._is_torn = False

    def _next(self) -> object:
        if self._death is not None:
            raise self._death
        if self._ended or self.driver.closed:
            raise StopIteration
        if self.driver.pid != os.getpid():
            raise WorkerError(
                f"This iteration and its workers belong to process {self.driver.pid}, from which this one was forked. "
                "Start another iteration: iter(loader)."
            )
        self._is_torn = True
        try:
            batch = self.driver.next()  # not the built-in next(), after which a signal could come
            self._is_torn = False
            if self.leaving:
                self._close()
            return batch
        except StopIteration:
            self._ended = True  # the rest is outside, so that Ctrl-C is not raised with this as its context
        except BaseException as exc:
            if is_interrupt(exc):
                self._let_go()
                raise
            if self._is_over() and isinstance(exc, Exception):  # the iteration cannot continue
                self._death = twin_of(exc)
            self._is_torn = False
            raise
        self._is_torn = False
        if not self.leaving:
            self.ending = self.progress
        if self.leaving or not self._persistent:
            self._close()
        else:
            self.driver.rest()
        if self.ending is not None:
            self.driver.end()
        raise StopIteration

    def _is_over(self) -> bool:
        return self.driver.closed

    def close(self) -> None:
        if self.driver.pid == os.getpid():
            self.driver.leaving = True
            super().close()
        self._ended = True

    def _close(self) -> None:
        self._ended = True
        if not self.driver.closed:
            if not self._is_torn:
                self.driver.leave_epoch()
            self._let_go()

    def _let_go(self) -> None:
        self.driver.close()
        self._finalizer.detach()  # it has nothing left to do, and Python drops exceptions that handlers raise in it
