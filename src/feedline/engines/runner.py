"""What every worker does with a task, in whatever engine it lives."""

from __future__ import annotations

import copy
import time
from typing import Any

from feedline import memory, randomness
from feedline.abc.stateful import is_stateful
from feedline.fetch import Fetcher, fetcher_for
from feedline.fetch.streams import Stream
from feedline.types import (
    Call,
    DatasetKind,
    Draw,
    Notes,
    Result,
    ResultKind,
    Resume,
    Task,
    WorkerIdentity,
    WorkerSpec,
)


class Runner:
    """One worker's dataset, fetcher and epoch.

    Args:
        spec: what all workers share.
        worker: who this one is; None for the training process itself (no worker at all).

    An exception while setting up (the user's `worker_init_fn`, `iter(dataset)`) is kept and raised by the first task,
    where it reaches the training loop; the tasks after it raise it again.
    """

    def __init__(self, spec: WorkerSpec, worker: WorkerIdentity | None) -> None:
        self._spec = spec
        self.streams = spec.kind is DatasetKind.ITERABLE
        self._dataset = spec.dataset
        # Threads share the generators of the process with the training loop and with each other.
        threaded = worker is not None and worker.threaded
        # A stream that all workers read has to be the same in all of them, also if it shuffles itself.
        seeds = spec.seeded or spec.split is not None
        self._scope = randomness.Scope(seeds_globals=seeds and not threaded, keeps_globals=worker is None)
        self._fetch: Fetcher | None = None
        self._epoch: int | None = None
        self._opened = False
        # Does the dataset split itself? It should, unless the loader does. An init function may do it as well.
        curious = spec.split is not None or (spec.framework.can_be_asked and spec.init is None)
        self._watches_split = worker is not None and self.streams and spec.worker_count > 1 and curious
        self.trouble: Exception | None = None
        try:
            if worker is not None:
                self._dataset = spec.framework.open_worker(worker, spec)
                if spec.init is not None:
                    spec.init(worker.id)
            self._opened = True
        except Exception as exc:
            self.trouble = exc

    def attempt(self, task: Task, worker: int, room: memory.Memory | None) -> Result:
        """Run a task and report on it: DONE with the batch, FAILED with the exception, ENDED."""
        begun = time.perf_counter_ns()
        try:
            batch = self.run(task, room)
            notes = self._notes(task) if task.snapshot or self._watches_split else None
        except StopIteration as exc:
            return self._end(task, worker) if self.streams else Result(ResultKind.FAILED, worker, task.id, exc)
        except Exception as exc:
            return Result(ResultKind.FAILED, worker, task.id, exc)
        return Result(ResultKind.DONE, worker, task.id, batch, time.perf_counter_ns() - begun, notes)

    def _end(self, task: Task, worker: int) -> Result:
        try:
            return Result(ResultKind.ENDED, worker, task.id, notes=self._last_notes())
        except Exception as exc:  # the user's state_dict
            return Result(ResultKind.FAILED, worker, task.id, exc)

    def run(self, task: Task, room: memory.Memory | None) -> Any:
        """Make the batch, if possible in `room`; raises StopIteration at the end of a stream."""
        if type(task.indices) is Call:
            return getattr(self._dataset, task.indices.name)(*task.indices.arguments, **task.indices.options)
        if task.epoch != self._epoch:
            self._begin_epoch(task)
        return self.make(task.indices, task.draw, room)

    def make(self, indices: Any, draw: Draw, room: memory.Memory | None) -> Any:
        """Make a batch of the epoch that was begun."""
        if self.trouble is not None:
            raise self.trouble
        assert self._fetch is not None
        self._scope.begin(draw)
        memory.set_current(room)
        before = randomness.enter(self._scope)
        try:
            return self._fetch(indices)
        finally:
            randomness.enter(before)
            memory.set_current(None)

    def _begin_epoch(self, task: Task) -> None:
        again = self._epoch is not None
        self._epoch = task.epoch
        if not self._opened:
            return  # it never got ready, and says so with every task
        self._fetch = None
        self.trouble = None
        try:
            if again:
                self._dataset = self._spec.framework.reset_worker(self._dataset, self._spec, task.shared_seed)
            self.begin(task.draw, task.resume)
        except Exception as exc:
            self.trouble = exc

    def begin(self, draw: Draw, resume: Resume | None = None) -> None:
        """Get ready for an epoch, or for the rest of one. For an iterable dataset this calls `iter(dataset)`.

        Args:
            draw: where the random numbers of the first batch come from; those of a stream all come from there.
            resume: where to go on.
        """
        if self._watches_split:
            self._spec.framework.forget_asking()
        self._scope.begin(draw)
        before = randomness.enter(self._scope)
        try:
            self._fetch = fetcher_for(self._dataset, self._spec, self._scope, resume)
        finally:
            randomness.enter(before)
        if self._watches_split:
            self.stream.is_watched = resume is None

    @property
    def stream(self) -> Stream:
        """The stream that batches are cut from, if the dataset is iterable."""
        stream: Stream = self._fetch.stream  # type: ignore[union-attr]  # the fetchers of streams have one
        return stream

    @property
    def is_stateful(self) -> bool:
        """True if the dataset or its iterator can save and restore its state."""
        return is_stateful(self._dataset) or (self.streams and self.stream.is_stateful)

    def states(self) -> Notes:
        """Return the states of dataset and iterator as they are now; None for what has no state."""
        if self.streams:
            notes = self.stream.notes()
            notes.consumed = getattr(self._fetch, "consumed", None)
            return notes
        return Notes(self._dataset.state_dict() if is_stateful(self._dataset) else None)

    def _last_notes(self) -> Notes | None:
        """Return the states at the end of a stream, where the next epoch begins."""
        notes = copy.deepcopy(self.states())
        return None if notes.dataset is None and notes.iterator is None else notes

    def _notes(self, task: Task) -> Notes | None:
        notes = Notes()
        if task.snapshot:
            notes = self.states()
            if notes.dataset is not None or notes.iterator is not None:  # which may change while the batch waits
                notes.dataset, notes.iterator = copy.deepcopy((notes.dataset, notes.iterator))
        if self._watches_split:
            self._watches_split = False
            has_asked = self._spec.framework.has_asked()
            notes.splits_itself = has_asked and self._spec.split is not None
            if self._spec.split is not None or not has_asked:
                notes.digest = self.stream.first_digest
        told = (notes.dataset, notes.iterator, notes.digest, notes.consumed, notes.splits_itself or None)
        return None if all(value is None for value in told) else notes


__all__ = ["Runner"]
