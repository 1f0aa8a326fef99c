"""Run tasks, in a worker of any engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from feedline.abc import memory
from feedline.abc.faults import Failure, Fault
from feedline.abc.framework import Calls, Gather
from feedline.abc.source import Acknowledged, ShardedSource
from feedline.abc.stateful import is_stateful
from feedline.abc.worker_spec import WorkerSpec
from feedline.randomness import scope as randomness
from feedline.randomness.global_states import globals_kept
from feedline.system.failures import add_note, is_interrupt, stage_of, twin_of, without_frames
from feedline.types import Call, DatasetKind, Draw, Notes, Position, Result, ResultKind, Task, WorkerIdentity
from feedline.workers.fetch import Fetcher, fetcher_for
from feedline.workers.fetch.announcing import Announcer, announcer_of
from feedline.workers.fetch.awaiting import asks_together, batch_getter, is_awaited
from feedline.workers.fetch.fetcher import GatheringFetcher, is_reusable
from feedline.workers.fetch.guard import Guard, NothingLeft, Pause, plain
from feedline.workers.task_clock import TaskClock, TaskCpu

if TYPE_CHECKING:
    from feedline.randomness.agreement import Agreement
    from feedline.workers.fetch.streams import Stream


class StillReading(BaseException):
    """Raised by `report_alive` to interrupt a task while the samples before it are read. Run the task again."""


class Runner:
    """One worker's dataset, fetcher and epoch.

    Args:
        spec: what all workers share.
        worker: this worker's identity; None for the training process itself (no worker at all).
        pause: how to wait before a sample is tried again.
        report_alive: called before any of the user's code runs, and while samples before those of a task are read.
        agreement: what this worker compares with others about a stream that all of them read; None for nothing.

    An exception during setup is kept: engines that can start another worker do so (`unready`). Every task of the epoch
    raises an exception of `iter(dataset)`.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        worker: WorkerIdentity | None,
        pause: Pause = time.sleep,
        report_alive: Callable[[], None] | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        self._spec = spec
        self._agreement = agreement
        self._worker = None if worker is None else worker.id
        self._pause = pause
        self._report_alive = report_alive
        self._guard: Guard | None = None
        self.streams = spec.kind is DatasetKind.ITERABLE
        self._acknowledged = self.streams and isinstance(spec.dataset, Acknowledged)
        self._dataset = spec.dataset
        # Threads share the process's generators with the training loop and with each other.
        self._threaded = threaded = worker is not None and worker.threaded
        # A stream that all workers read must be the same in all of them, even if it shuffles itself.
        seeds = spec.seeded or spec.sharding is not None
        self._scope = randomness.Scope(seeds_globals=seeds and not threaded, keeps_globals=worker is None)
        self._scope.is_timed = worker is not None
        # A worker process computes for its task alone, on all of its threads.
        self.clock = TaskClock(spec, self._scope, TaskCpu(of_process=worker is not None and not threaded))
        self._fetch: Fetcher | None = None
        self._batch_getter: Callable[[object], object] | None = None
        """The dataset's `__getitems__` in this epoch."""
        self._epoch: int | None = None
        # Does the dataset split itself? It should, unless the loader splits it. An init function may do so as well.
        curious = spec.sharding is not None or (spec.framework.has_worker_info and spec.init is None)
        curious = curious and not isinstance(spec.dataset, ShardedSource)
        self._watches_split = worker is not None and self.streams and spec.worker_count > 1 and curious
        self.trouble: Exception | None = None
        self.unready: Exception | None = None
        """The exception that kept the worker from getting ready, such as one in the user's `worker_init_fn`."""
        try:
            if worker is not None:
                self._dataset = spec.framework.open_worker(worker, spec.base_seed, spec.shared_seed)
                if isinstance(self._dataset, ShardedSource):
                    self._dataset.set_worker(worker.id, worker.count)
                if report_alive is not None:
                    report_alive()
                if spec.init is not None:
                    spec.init(worker.id)
        except Exception as exc:
            self.trouble = self.unready = exc
        self.announcer: Announcer | None = None
        """Tells the dataset what comes next; None if the dataset does not fetch ahead."""
        if not self.streams and worker is not None:
            self.announcer = announcer_of(self._dataset)

    def attempt(self, task: Task, worker: int, buffer: memory.Memory | None) -> Result:
        """Run a task and return its result: DONE with the batch, FAILED with the exception, EMPTY, ENDED."""
        began = time.monotonic_ns()
        self.clock.cpu.begin()
        try:
            batch = self.run(task, buffer)
            notes = None if type(task.indices) is Call else self._notes(task)
        except Exception as exc:
            return self.report(exc, task, worker)
        ended = time.monotonic_ns()
        result = Result(ResultKind.DONE, worker, task.id, batch, ended - began, notes)
        if worker >= 0:  # the training loop measures only some of its own tasks
            fetch, collate, result.task_notes = self.clock.of(began, ended, task.indices)
            # A worker process still has to write the batch, and reports the CPU time afterwards, writing included.
            cpu = self.clock.cpu.spent(ended - began) if self._threaded else (-1, 0)
            result.times = (began, fetch, collate, *cpu)
        return result

    def serve(self, task: Task, worker: int, buffer: memory.Memory | None) -> Result:
        """Run a task in a worker process, which exits only if the user's code requests it (`sys.exit`).

        Everything else that the user's code raises is reported, also if it is no `Exception`, such as
        asyncio.CancelledError.
        """
        try:
            return self.attempt(task, worker, buffer)
        except (KeyboardInterrupt, SystemExit, GeneratorExit, StillReading):
            raise
        except BaseException as exc:
            return self.report(exc, task, worker)

    def take_receipts(self) -> object:
        """Return receipts for the samples since the last call; None if the dataset needs none."""
        return self._dataset.take_receipts() if self._acknowledged else None

    def report(self, exc: BaseException, task: Task, worker: int) -> Result:
        """Return the result of a task that ended in an exception: FAILED, EMPTY or ENDED."""
        if isinstance(exc, NothingLeft):
            assert self._guard is not None
            self._scope.unfit = None
            notes = self._noted(Notes(faults=self._guard.faults))
            return Result(ResultKind.EMPTY, worker, task.id, notes=notes)
        if isinstance(exc, StopIteration) and self.streams and self.trouble is None:
            return self._end(task, worker)
        fault = self.describe(exc, task.indices)
        failed = None if fault is None else self._noted(Notes(faults=[fault]))
        return Result(ResultKind.FAILED, worker, task.id, exc, notes=failed)

    def describe(self, exc: BaseException, indices: object) -> Fault | None:
        """Add notes that name the sample to an exception; return the entry for the fault log."""
        if self.trouble is not None or type(indices) is Call:
            return None
        stage, index = self._where(exc, indices)
        from feedline.workers.fetch.failure_notes import notes_on

        samples, self._scope.unfit = self._scope.unfit, None
        for note in notes_on(exc, stage, index, self._dataset, self._spec, self._worker, samples or ()):
            add_note(exc, note)
        attempts = 1 if self._guard is None else self._guard.attempts
        return Fault.of(Failure(index, exc, stage, attempts, self._worker), "raise", time=time.time())

    def _where(self, exc: BaseException, indices: Any) -> tuple[str, object]:
        """Return the stage and the sample that an exception came from; all samples, if it is not known which."""
        place = self._scope.place
        stage = "collate" if place < 0 else stage_of(exc, self._dataset)
        if self.streams:
            number = self.stream.place
            return stage, number if place < 0 else getattr(self._fetch, "failed_place", max(0, number - 1))
        indices = plain(indices)
        if not self._spec.batched or not isinstance(indices, Iterable):
            return stage, indices
        items = list(indices)
        if place < 0:
            return stage, items
        found: int | None = place
        # A guard has requested the samples of a caught failure again, one by one.
        if asks_together(self._dataset) and (self._guard is None or not isinstance(exc, Exception)):
            found = self._place_of_failed(exc, items)
        return stage, items if found is None or found >= len(items) else items[found]

    def _place_of_failed(self, exc: BaseException, items: list[object]) -> int | None:
        if is_stateful(self._dataset) or is_awaited(self._dataset) or is_interrupt(exc):
            return None  # fetching again would change what comes next, or take an unknown time
        from feedline.workers.fetch.failure_notes import place_of_failed

        with nullcontext() if self._threaded else globals_kept():
            return place_of_failed(exc, self._dataset, items)

    def _end(self, task: Task, worker: int) -> Result:
        try:
            position = self._saved_position()
            notes = None if position is None else Notes(position)
            left_out = getattr(self._fetch, "left_out", 0)
            if self._guard is not None and (self._guard.faults or left_out):  # the fault budget counts all of them
                notes = notes or Notes()
                notes.faults, notes.left_out = self._guard.faults, left_out
            return Result(ResultKind.ENDED, worker, task.id, notes=notes)
        except Exception as exc:  # the user's state_dict
            return Result(ResultKind.FAILED, worker, task.id, exc)

    def run(self, task: Task, buffer: memory.Memory | None) -> Any:
        """Make the batch, in `buffer` if possible; raise StopIteration at the end of a stream."""
        if type(task.indices) is Call:
            try:
                return getattr(self._dataset, task.indices.name)(*task.indices.arguments, **task.indices.options)
            finally:
                Calls.last = object()
        if task.epoch != self._epoch:
            self._begin_epoch(task)
        if self._guard is not None:
            self._guard.begin(task.skip)
        return self.make(task.indices, task.draw, buffer)

    def make(self, indices: object, draw: Draw | Callable[[], Draw], buffer: memory.Memory | None) -> object:
        """Make a batch of the current epoch."""
        if self.trouble is not None:
            raise twin_of(self.trouble)
        assert self._fetch is not None
        self._scope.begin(draw)
        if randomness.ranges is not None and (self._worker is None or self._threaded):
            self._scope.show("fetch")
        here = memory.on_this_thread
        outside = here.memory, here.placement
        here.memory, here.placement = buffer, self._spec.placement
        before = randomness.enter(self._scope)
        try:
            return self._fetch(indices)
        except (StopIteration, NothingLeft):
            raise
        except BaseException as exc:
            # After an interrupt, the batch is made when it is requested again; but if collation failed, it would again.
            if self._acknowledged and (self._scope.place >= 0 or not isinstance(exc, Exception)):
                self._dataset.put_back()
            raise
        finally:
            randomness.enter(before)
            self._scope.end()
            here.memory, here.placement = outside

    def _begin_epoch(self, task: Task) -> None:
        if self._agreement is not None:
            self._scope.findings = self._agreement.of(task.epoch)
        if self.unready is not None:
            self._epoch = task.epoch
            return  # every task reports it
        self._fetch = None
        self.trouble = None
        try:
            if self._epoch is not None:
                self._dataset = self._spec.framework.reset_worker(self._dataset, task.shared_seed)
            self._catch_up(task)
            self._epoch = task.epoch
            self.begin(task.draw, task.resume)
        except Exception as exc:
            self._epoch, self.trouble = task.epoch, without_frames(exc)

    def _catch_up(self, task: Task) -> None:
        """Begin the epochs of a stream that this worker has missed: it is new, or its scheduler gave it no task.

        With a state to resume from, that is done from there; see `fetcher_for`.
        """
        missed = range(0 if self._epoch is None else self._epoch + 1, task.epoch)
        if not (self.streams and missed) or (task.resume is not None and task.resume.dataset is not None):
            return
        from feedline.workers.fetch.streams import begin_and_leave

        self._scope.begin(task.draw)
        before = randomness.enter(self._scope)
        try:
            for self._epoch in missed:
                begin_and_leave(self._dataset)
                if self._report_alive is not None:
                    self._report_alive()
        finally:
            randomness.enter(before)

    def begin(self, draw: Draw, resume: Position | None = None) -> None:
        """Prepare for an epoch, or for the rest of one. For an iterable dataset this calls `iter(dataset)`.

        Args:
            draw: the source of the first batch's random numbers; for a stream, of all of them.
            resume: where to resume.
        """
        if self._epoch is None:
            self._epoch = 0
        if self._watches_split:
            self._spec.framework.reset_worker_info_read()
        if not self.streams:
            self._batch_getter = batch_getter(self._dataset)
        self._scope.begin(draw)
        before = randomness.enter(self._scope)
        try:
            self._fetch = fetcher_for(self._dataset, self._spec, self._scope, resume, self._make_guard())
        finally:
            randomness.enter(before)
        if self.streams:
            self.stream.report_alive = self._report_alive
        if self._watches_split and resume is None:
            self.stream.watch(is_shared=self._spec.sharding is not None)

    @property
    def is_begun(self) -> bool:
        """True if `begin` would change nothing: another epoch of samples that are requested one by one or together."""
        if self._fetch is None or self._guard is not None or not is_reusable(self._fetch, self._dataset):
            return False
        return batch_getter(self._dataset) == self._batch_getter

    def _make_guard(self) -> Guard | None:
        policy = self._spec.on_error
        if policy is None or policy.never_catches:
            return None
        self._guard = Guard(policy, self._scope, self._dataset, worker=self._worker, pause=self._pause)
        return self._guard

    @property
    def stream(self) -> Stream:
        """The stream that batches are cut from, if the dataset is iterable."""
        stream: Stream = self._fetch.stream  # type: ignore[union-attr]  # the fetchers of streams have one
        return stream

    @property
    def quick(self) -> Gather | None:
        """A function that makes small batches of the epoch without a task, if there is one; see `Gather`."""
        return self._fetch.quick if isinstance(self._fetch, GatheringFetcher) else None

    @property
    def is_stateful(self) -> bool:
        """True if the dataset or its iterator can save and restore its state."""
        return is_stateful(self._dataset) or (self.streams and self.stream.is_stateful)

    @property
    def _has_ended(self) -> bool:
        """True if a stream has no sample after the last batch."""
        return getattr(self._fetch, "has_ended", False)

    def position(self) -> Position:
        """Return the current position, with the states of dataset and iterator if these have any."""
        if not self.streams:
            return Position(self._dataset.state_dict() if is_stateful(self._dataset) else None)
        position = self.stream.position()
        if self._spec.sharding is not None:
            position.read = getattr(self._fetch, "consumed", None)
        # A feed delivers again what was not acknowledged, also after its end.
        position.ended = self._has_ended and not self._acknowledged
        return position

    def _saved_position(self) -> Position | None:
        """Return a copy of the current position, which may change while the batch waits; None if it says nothing."""
        position = self.position()
        if position.has_state:
            return position.copied()
        return None if self._spec.sharding is None or position.read is None else position

    def _noted(self, notes: Notes) -> Notes:
        """Return notes that say how much of a worker's own stream was read, if they have no position."""
        if notes.position is None and self.streams and self._spec.sharding is None:
            ended = self._has_ended and not self.is_stateful and not self._acknowledged
            notes.position = Position(read=self.stream.next_place, ended=ended)
        return notes

    def _notes(self, task: Task) -> Notes | None:
        """Return what does not follow from the batch that was just made; None if everything does."""
        faults = [] if self._guard is None else self._guard.faults
        # A last batch that is short is not as many samples as others, and its states are those of the end.
        has_ended = self._has_ended
        has_digests = self.streams and bool(self.stream.digests)
        # A feed does not redeliver acknowledged samples, so those since an older state cannot be counted off.
        position = self._saved_position() if task.snapshot or self._acknowledged or has_ended else None
        says_more = self._acknowledged or faults or has_ended or has_digests or self._watches_split
        if position is None and not says_more:
            return None
        notes = Notes(position, faults=faults, receipts=self.take_receipts())
        if self._watches_split:
            self._watches_split = False
            worker_info_was_read = self._spec.framework.worker_info_was_read()
            notes.shards_itself = worker_info_was_read and self._spec.sharding is not None
            if self._spec.sharding is None and worker_info_was_read:
                self.stream.digests.clear()
        if has_digests:
            notes.digests = tuple(self.stream.digests)
            self.stream.digests.clear()
        return self._noted(notes)
