"""Batches made on request, in the calling thread."""

from __future__ import annotations

import time
import weakref
from functools import partial
from time import monotonic  # by name: it is called for every batch, however short
from typing import TYPE_CHECKING, Protocol

from feedline.abc.source import Acknowledged
from feedline.abc.worker_spec import WorkerSpec
from feedline.delivery.driver.caller_lock import OneCallerBatches
from feedline.delivery.machine.batch_indices import count_of
from feedline.delivery.machine.counters import Counters
from feedline.delivery.machine.fault_budget import FaultBudget, Treated
from feedline.delivery.state import Snapshot
from feedline.delivery.state.checkpoint import Checkpoint
from feedline.errors import BadState, TooManyBadSamples
from feedline.faults.policy import policy_of
from feedline.memory.local_buffers import LocalBuffers
from feedline.randomness import scope as randomness
from feedline.randomness.scope import TRANSFORM
from feedline.system.failures import is_interrupt
from feedline.types import DatasetKind, Draw, IndexBlock, Result, ResultKind, Span, Task

if TYPE_CHECKING:
    from feedline.delivery.driver.acknowledgements import Acknowledgements
    from feedline.delivery.driver.driver import Prepare, RowParts
    from feedline.memory.arena import Arena
    from feedline.workers.runner import Runner


class Host(Protocol):
    """A loader's session, as far as batches without workers need it."""

    counters: Counters

    def arena(self) -> Arena | None: ...

    def take_runner(self, spec: WorkerSpec, user: object) -> Runner: ...

    def keep_runner(self, spec: WorkerSpec, runner: Runner, user: object) -> None: ...


class InlineBatches(OneCallerBatches):
    """Make each batch on request, in the calling thread.

    After an interrupt, the next request gets the next batch, as in torch; `state_dict()` still counts the interrupted
    one as not delivered. In the middle of a sampler or a stream, an interrupt ends the iteration: it is unknown whether
    they have advanced.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        checkpoint: Checkpoint,
        snapshot: Snapshot | None,
        host: Host,
        prepare: Prepare | None,
        fault_budget: FaultBudget | None = None,
    ) -> None:
        super().__init__()
        self._fault_budget = fault_budget or FaultBudget(policy_of(None))
        self._host = host
        self._buffer = LocalBuffers(host.arena)
        self.counters = host.counters
        self._observer = self.counters.observer
        self.rows: list[RowParts] | None = None
        """See `Driver.rows`."""
        self._prepare = prepare
        self.begin(spec, checkpoint, snapshot)

    def begin(self, spec: WorkerSpec, checkpoint: Checkpoint, snapshot: Snapshot | None) -> None:
        """Begin an epoch, or the rest of one; call it again only before the first request."""
        runner = self._host.take_runner(spec, self)
        self._epoch = checkpoint.entry.key.epoch
        streams = () if snapshot is None else snapshot.streams
        if len(streams) > 1:
            raise BadState(
                f"The state was saved with {len(streams)} workers, each with its own state of the dataset or stream, "
                f"but there are none now. Use {len(streams)} workers."
            )
        plan, progress = checkpoint.plan, checkpoint.entry.progress
        assert plan is not None
        if streams or not runner.is_begun:
            runner.begin(plan.draw(0), streams[0].copied() if streams else None)
        self._batched = spec.batched
        self._guards = self._fault_budget.guards
        self._spent_at: tuple[int, object] | None = None
        """The batch, by number and contents, at which the policy's budget was spent. It is made once that has changed.
        """
        self._stream_count = checkpoint.batch_size
        self._already = frozenset(() if snapshot is None else snapshot.early)
        progress.early.update(self._already)
        if spec.kind is DatasetKind.ITERABLE and streams and spec.sharding is None:
            progress.delivered, progress.read = streams[0].batches, streams[0].read
        # A runner holds the dataset's iterator open, so the checkpoint refers to it only if needed: for states, or
        # because the last step of a shared stream may consume fewer samples than others.
        if spec.sharding is not None or runner.is_stateful:
            checkpoint.live = runner.position
        elif not (streams or runner.streams):
            self._host.keep_runner(spec, runner, self)
        self._runner = runner
        self._quick = runner.quick
        """A faster way to make small batches than a task, if there is one."""
        self._plan = plan
        if checkpoint.live is not None or not plan.goes_ahead:  # else it keeps nothing of the user's open
            from feedline.system import interrupts

            weakref.finalize(self, interrupts.see_through, checkpoint.freeze).atexit = False
        self.checkpoint = checkpoint
        self.progress = progress
        self._ordinal = progress.delivered
        self._acknowledgements: Acknowledgements | None = None
        """For a stream that is notified which of its samples were consumed."""
        if runner.streams and isinstance(spec.dataset, Acknowledged):
            from feedline.delivery.driver.acknowledgements import Acknowledgements

            self._acknowledgements = Acknowledgements(spec.dataset)

    def _next(self) -> object:
        if self.leaving:
            raise StopIteration
        if self._spent_at is not None:
            self._fault_budget.check()
        if self._acknowledgements is not None:
            self._acknowledgements.acknowledge()
        observer = self._observer
        is_seen, asked_s = observer.got, monotonic()
        # Epochs of one batch do not read the thread's clock, which some systems need milliseconds for.
        has_clock = is_seen > 0 or (is_seen < 0 and observer.is_recording)
        quick = self._quick
        began = finished = 0
        cpu = (-1, 0)
        while True:
            ordinal, indices = self._take()
            if is_seen:
                began = time.monotonic_ns()
                self._runner.clock.begin()
                if has_clock:
                    self._runner.clock.cpu.begin()
            batch = None
            try:
                # Closing a buffer gives back the memory that it keeps for large batches.
                if quick is not None and type(indices) is IndexBlock and randomness.ranges is None:
                    batch = None if self._buffer.is_warm else quick(indices.array)
                if batch is None:
                    batch = self._make(ordinal, indices)
            except BaseException as exc:
                self._fail(exc, ordinal, indices)
                raise
            if is_seen:
                finished = time.monotonic_ns()
                if has_clock:
                    cpu = self._runner.clock.cpu.spent(finished - began)
            if batch is _VOID:
                self.progress.missing += 1
                self._note(ordinal)
                continue
            if self._prepare is not None:
                batch = self._touch_up(ordinal, batch, self._prepare)
            self.counters.batches += 1
            if is_seen:
                self._write(ordinal, indices, int(asked_s * 1e9), (began, finished), cpu)
            else:
                observer.last_s = now_s = monotonic()
                observer.waited_s += now_s - asked_s
                if self.counters.batches >= observer.due:
                    observer.got = int(now_s * 1e9)
            self._note(ordinal)
            return batch

    def _write(self, ordinal: int, indices: object, asked: int, made: tuple[int, int], cpu: tuple[int, int]) -> None:
        """Write the row of a batch that is about to be delivered, or leave that to the object that hands it on."""
        began, finished = made
        fetch, collate, task_notes = self._runner.clock.of(began, finished, indices)
        self._runner.clock.end()
        transform = 0
        if task_notes is not None:
            transform = task_notes.stages.pop(TRANSFORM, 0)
            self._observer.add_notes(task_notes, -1)
        count = self._stream_count if self._runner.streams else count_of(indices, batched=self._batched)
        row_parts = (ordinal, -1, count, 0, asked, began, fetch, transform, collate, 0, *cpu, finished, finished)
        if self.rows is not None:
            self.rows.append((row_parts, (0, 0, 0, 0)))
        else:
            self._observer.write(row_parts, asked, time.monotonic_ns(), (0, 0, 0, 0), self.counters.batches)

    def is_ready(self) -> bool:
        """False: batches are made on request."""
        return False

    def _end(self) -> None:
        if self.rows is None:
            self._observer.end(self.counters.batches, time.monotonic_ns())
        self._buffer.rest()

    def _fail(self, exc: BaseException, ordinal: int, indices: object) -> None:
        """Handle an exception in place of a batch: log it and count the batch as delivered, unless interrupted."""
        if isinstance(exc, StopIteration):
            self._end()
            self._is_torn = False
            self._fault_budget.check(ended=self._runner.streams)
            self.ending = self.progress if self._runner.streams else None
        elif isinstance(exc, TooManyBadSamples):
            self._is_torn, self._spent_at = False, (ordinal, indices)
        elif not is_interrupt(exc):
            self._log(exc, indices)
            self.progress.missing += 1
            self._note(ordinal, failed=True)

    def _touch_up(self, ordinal: int, batch: object, prepare: Prepare) -> object:
        try:
            return prepare(batch)
        except BaseException as exc:
            if not is_interrupt(exc):
                self.progress.missing += 1
                self._note(ordinal)
            raise

    def _take(self) -> tuple[int, object]:
        """Return the number and the contents of the next undelivered batch."""
        if self._spent_at is not None:
            again, self._spent_at = self._spent_at, None
            return again
        self._is_torn = True
        try:
            indices = next(self._plan)
            while self._already and self._ordinal in self._already:
                self._ordinal += 1
                indices = next(self._plan)
        except StopIteration:
            self._is_torn = False
            self._fault_budget.check(ended=True)
            self._end()
            self.ending = self.progress
            raise
        except BaseException as exc:
            self._is_torn = is_interrupt(exc)
            raise
        self._ordinal += 1
        self._is_torn = self._runner.streams
        return self._ordinal - 1, indices

    def _note(self, ordinal: int, *, failed: bool = False) -> None:
        """Record a batch as delivered. This is the last step of a delivery, so that an interrupt loses nothing."""
        progress = self.progress
        place = None
        if self._runner.streams:
            place = self._runner.stream.place
            if self._acknowledgements is not None and not failed:
                self._acknowledgements.hold(self._runner.take_receipts())
        if ordinal == progress.delivered and not progress.early:
            progress.delivered = ordinal + 1  # what `note` would do, but cheaper
        else:
            progress.note(ordinal)
        progress.read, self._is_torn = place, False

    def _log(self, exc: BaseException, indices: object) -> None:
        """Log an exception that is about to be raised, unless it is logged already."""
        if not self._guards or isinstance(exc, (SystemExit, GeneratorExit)):  # which no result reports
            fault = self._runner.describe(exc, indices)
            self._fault_budget.write([] if fault is None else [fault], 0, self._epoch)

    def _make(self, ordinal: int, indices: object) -> object:
        """Make a batch; return `_VOID` if it has no samples left."""
        if not self._guards:
            buffer = self._buffer
            try:
                return self._runner.make(indices, partial(self._plan.draw, ordinal), buffer)
            finally:
                buffer.close()
        draw = self._plan.draw(ordinal)
        streams = self._runner.streams
        treated = Treated(indices) if streams else self._fault_budget.treat(indices, batched=self._batched)
        while (batch := self._make_guarded(treated, draw)) is _VOID and self._fault_budget.keeps_steps:
            treated = self._fault_budget.instead_of(treated, batched=self._batched)
        return batch

    def _make_guarded(self, treated: Treated, draw: Draw) -> object:
        task = Task(0, treated.indices, draw=draw, skip=treated.skip)
        try:
            result = self._runner.serve(task, -1, self._buffer)
        finally:
            self._buffer.close()
        if result.kind is ResultKind.FAILED and is_interrupt(result.payload):
            raise result.payload
        if result.notes is not None and self._acknowledgements is not None:
            self._acknowledgements.hold(result.notes.receipts)
        return self._with_faults_noted(result, treated)

    def _with_faults_noted(self, result: Result, treated: Treated) -> object:
        """Log the faults of a batch; return the batch or `_VOID`, or raise the exception in its place."""
        if result.kind is ResultKind.ENDED:
            count = 0 if result.notes is None else result.notes.left_out
        elif not self._runner.streams:
            count = count_of(treated.indices, batched=self._batched)
        else:
            count = self._stream_count
            if type(treated.indices) is not Span:  # other streams read on to replace failed samples
                count += len(result.notes.faults if result.notes else ())
        self._fault_budget.enter(result, count, self._epoch, treated)
        if result.kind is ResultKind.ENDED:
            raise StopIteration
        self._fault_budget.check()
        if result.kind is ResultKind.FAILED:
            raise result.payload
        return _VOID if result.kind is ResultKind.EMPTY else result.payload

    def close(self) -> None:
        """End the iteration: no further batch is begun. Does not wait, as nothing is running."""
        self.leaving = True

    def _close(self) -> None:
        """Do nothing, as nothing is running."""


_VOID = object()
"""Stands for a batch that has no samples left."""
