"""What `iter(loader)` returns: batches made inline, or by a crew."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from feedline.abc.source import SplitSource
from feedline.abc.stateful import is_stateful
from feedline.engines.runner import Runner
from feedline.errors import BadState, TooManyBadSamples, WorkerError
from feedline.failures import twin_of
from feedline.faults.policy import policy_of
from feedline.loader.account import Account, Treated
from feedline.loader.batch_indices import count_of, reusable
from feedline.loader.bookmark import Bookmark, notes_of, resume_of
from feedline.loader.crew import Counters, Crew, Prepare
from feedline.loader.map_epoch import Limits, MapEpoch
from feedline.loader.pending import Pending
from feedline.loader.progress import StreamProgress
from feedline.loader.receipts import Receipts
from feedline.loader.repair import Repair
from feedline.loader.settings import Settings
from feedline.loader.stream_epoch import Request, StreamEpoch
from feedline.state import Snapshot
from feedline.transport.arena import Arena
from feedline.transport.room import LocalRoom
from feedline.types import DatasetKind, Notes, Result, ResultKind, Resume, Span, Task, WorkerSpec

Epoch = MapEpoch | StreamEpoch
MakeEpoch = Callable[[Crew], Epoch]


def begin_epoch(
    crew: Crew,
    settings: Settings,
    spec: WorkerSpec,
    bookmark: Bookmark,
    snapshot: Snapshot | None,
    *,
    shared_seed: int | None = None,
    account: Account | None = None,
) -> Epoch:
    """Begin a pass over a dataset, or the rest of one, with workers."""
    epoch = _epoch(crew, settings, spec, bookmark, snapshot, shared_seed, account)
    epoch.bookmark = bookmark
    return epoch


def _epoch(
    crew: Crew,
    settings: Settings,
    spec: WorkerSpec,
    bookmark: Bookmark,
    snapshot: Snapshot | None,
    shared_seed: int | None,
    account: Account | None,
) -> Epoch:
    entry = bookmark.entry
    limits = Limits(settings.window, max(1, settings.depth), settings.timeout_s, kills_stuck=bool(settings.restarts))
    streams = () if snapshot is None else snapshot.streams
    entry.progress.turn = 0 if snapshot is None else snapshot.turn
    if spec.kind is DatasetKind.ITERABLE and spec.split is None:
        if streams and len(streams) != len(crew.workers):
            or_else = (
                "."
                if isinstance(spec.dataset, SplitSource)
                else ", or let the loader share out the samples (shard=True): then the number may change."
            )
            raise BadState(
                f"The state was saved with {len(streams)} streams of samples, one per worker, and there are "
                f"{len(crew.workers)} workers now. Use as many{or_else}"
            )
        entry.progress.streams = [_begun(stream) for stream in streams]
        return StreamEpoch(
            crew,
            Request(
                bookmark.batch_size if spec.batched else None,
                entry.draw_key,
                shared_seed,
                settings.snapshot_every,
            ),
            limits,
            entry.progress,
            in_order=settings.in_order,
            resumes={worker: resume_of(stream, bookmark.batch_size) for worker, stream in enumerate(streams)},
            account=account,
            epoch=entry.key.epoch,
            receipts=Receipts(spec.dataset),
        )
    known = {worker: notes_of(stream) for worker, stream in enumerate(streams)}
    entry.progress.notes.update({worker: notes for worker, notes in known.items() if notes is not None})
    assert bookmark.plan is not None
    return MapEpoch(
        crew,
        bookmark.plan,
        settings.make_scheduler(),
        limits,
        entry.progress,
        already=() if snapshot is None else snapshot.early,
        resumes=_resumes(spec, streams, len(crew.workers), bookmark),
        turn=entry.progress.turn,
        snapshots=spec.split is not None or is_stateful(spec.dataset),
        stream_count=0 if spec.split is None else spec.split.batch_size,
        batched=spec.batched,
        account=account,
        epoch=entry.key.epoch,
    )


def _begun(stream: dict[str, Any]) -> StreamProgress:
    batches = stream.get("batches", 0)
    noted_at, read = stream.get("noted_at", batches), stream.get("read")
    return StreamProgress(batches, stream.get("ended", False), notes_of(stream), noted_at, read)


def _resumes(spec: WorkerSpec, streams: Any, worker_count: int, bookmark: Bookmark) -> dict[int, Resume]:
    if not streams:
        return {}
    if spec.split is not None:  # every worker reads the same stream, so any state of it will do
        return {worker: resume_of(streams[0], bookmark.batch_size) for worker in range(worker_count)}
    if len(streams) != worker_count:
        raise BadState(
            f"The dataset keeps a state of its own in every worker; the state was saved with {len(streams)} of them, "
            f"and there are {worker_count} now. Use as many workers as then."
        )
    return {worker: resume_of(stream, bookmark.batch_size) for worker, stream in enumerate(streams) if stream}


def _freeze(bookmarks: list[Bookmark]) -> None:
    for bookmark in bookmarks:
        bookmark.freeze()


class InlineBatches(Iterator[Any]):
    """Makes each batch when it is asked for, in the thread that asks."""

    def __init__(
        self,
        spec: WorkerSpec,
        bookmark: Bookmark,
        snapshot: Snapshot | None,
        arena: Arena | None,
        counters: Counters,
        prepare: Prepare | None,
        account: Account | None = None,
    ) -> None:
        runner = Runner(spec, None)
        self._account = account or Account(policy_of(None))
        self._epoch = bookmark.entry.key.epoch
        streams = () if snapshot is None else snapshot.streams
        if len(streams) > 1:
            raise BadState(
                f"The state was saved with {len(streams)} workers, whose dataset or stream each had a state of its "
                "own, and there are none now. Use as many workers as then."
            )
        assert bookmark.plan is not None
        runner.begin(bookmark.plan.draw(0), resume_of(streams[0], bookmark.batch_size) if streams else None)
        self._batched = spec.batched
        already = frozenset(() if snapshot is None else snapshot.early)
        self._repair = Repair.of(bookmark.plan, self._account, batched=spec.batched, already=already)
        self._task_count = 0
        self._is_spent = False
        """True if the policy's budget was spent: it is not asked for a batch again before that has changed."""
        self._stream_count = bookmark.batch_size
        progress = bookmark.entry.progress
        self._already = already
        progress.early.update(self._already)
        if spec.kind is DatasetKind.ITERABLE and streams and spec.split is None:
            progress.delivered = streams[0].get("batches", 0)
        exact = spec.split is not None and spec.split.share.tail == "exact"
        # Kept only for a state that nobody else knows: a runner holds the dataset's iterator open.
        if exact or runner.is_stateful:
            bookmark.live = runner.states
        assert bookmark.plan is not None
        self._runner = runner
        self._plan = bookmark.plan
        weakref.finalize(self, bookmark.freeze).atexit = False
        self._progress = progress
        self._ordinal = progress.delivered
        self._held: list[Any] = []
        """What an interrupted batch consists of."""
        self._arena = arena
        self._counters = counters
        self._prepare = prepare
        self._receipts = Receipts(spec.dataset)

    def __next__(self) -> Any:
        progress = self._progress
        if self._is_spent:
            self._account.check()
        self._receipts.acknowledge()
        while True:
            try:
                indices = self._take()
                while self._already and self._ordinal in self._already:
                    self._ordinal += 1
                    indices = self._take()
            except StopIteration:
                self._account.check(ended=True)
                progress.ended = True
                raise
            ordinal = self._ordinal
            self._ordinal += 1
            checkpoint = None if self._repair is None else self._repair.checkpoint()
            try:
                batch = self._make(ordinal, indices)
            except StopIteration:
                progress.ended = self._runner.streams
                self._account.check(ended=progress.ended)
                raise
            except Exception as exc:
                if isinstance(exc, TooManyBadSamples):
                    self._is_spent = True
                    self._hold(ordinal, indices, checkpoint)
                else:
                    self._log(exc, indices)
                    self._note(ordinal)
                raise
            except BaseException:  # an interrupt
                self._hold(ordinal, indices, checkpoint)
                raise
            self._note(ordinal)
            self._receipts.hold(self._runner.take_receipts())
            if batch is _VOID:
                continue
            self._counters.batches += 1
            return batch if self._prepare is None else self._prepare(batch)

    def _hold(self, ordinal: int, indices: Any, checkpoint: Any) -> None:
        """Keep a batch that was not delivered: it is made when it is asked for again."""
        if self._repair is not None:
            self._repair.undo(checkpoint, ordinal)
        self._held.append(indices)
        self._ordinal = ordinal

    def _note(self, ordinal: int) -> None:
        self._progress.note(ordinal)
        if self._runner.streams:
            self._progress.read = self._runner.stream.place

    def _log(self, exc: Exception, indices: Any) -> None:
        """Keep account of an exception that is about to be raised, unless that was done."""
        if self._repair is None:
            fault = self._runner.describe(exc, indices)
            self._account.write([] if fault is None else [fault], 0, self._epoch)

    def _room(self) -> LocalRoom | None:
        return None if self._arena is None else LocalRoom(self._arena)

    def _make(self, ordinal: int, indices: Any) -> Any:
        """Make a batch; `_VOID` if no sample of it is left."""
        if self._repair is None:
            return self._runner.make(indices, self._plan.draw(ordinal), self._room())
        result = self._make_at_once(ordinal, indices, self._repair)
        if type(result) is not Result:
            return result
        count = self._repair.count_of(ordinal)
        if self._runner.streams:
            count = self._stream_count
            if type(indices) is not Span:  # which keeps the places of samples that failed; others read on
                count += len(result.notes.faults if result.notes else ())
        count = 0 if result.kind is ResultKind.ENDED else count
        self._account.enter(result, count, self._epoch, self._repair.treated(ordinal))
        self._repair.done(ordinal)
        if result.kind is ResultKind.ENDED:
            raise StopIteration
        self._account.check()
        if result.kind is ResultKind.FAILED:
            raise result.payload
        return _VOID if result.kind is ResultKind.SHORT else result.payload

    def _make_at_once(self, ordinal: int, indices: Any, repair: Repair) -> Any:
        """Make a batch as if nothing could fail; returns it, or the result of all that had to be done otherwise."""
        indices = reusable(indices)
        if self._runner.streams or self._account.log.quarantined or not repair.is_whole(ordinal, indices):
            return self._make_guarded(ordinal, indices, repair)
        first: Result
        try:
            batch, faults = self._runner.make_guarded(indices, self._plan.draw(ordinal), self._room())
        except Exception as exc:
            self._task_count += 1
            first = self._runner.report(exc, Task(self._task_count, indices), -1)
        else:
            if not faults:
                self._account.write((), count_of(indices, batched=self._batched), self._epoch)
                self._account.check()
                repair.done(ordinal)
                return batch
            first = Result(ResultKind.DONE, -1, 0, batch, notes=Notes(faults=faults))
        repair.begin(ordinal, Treated(indices))
        return self._make_guarded(ordinal, indices, repair, first)

    def _make_guarded(self, ordinal: int, indices: Any, repair: Repair, first: Result | None = None) -> Result:
        ready: dict[int, Result] = {}
        pending = Pending(self, ordinal, -1, Task(0 if first is None else first.task_id, indices))
        if self._runner.streams:
            return self._attempt(pending, indices, {})
        if first is not None:
            repair.answered(pending, first, ready)
        elif repair.may_begin(ordinal, indices):
            repair.answered(pending, self._attempt(pending, indices, {}), ready)
        while ordinal not in ready and ordinal not in repair.finished:
            mended = repair.next_mended(())
            if mended is None or mended.indices is None:
                if mended is not None and mended.failure is not None:
                    return mended.failure
                return repair.voids[ordinal]
            repair.answered(pending, self._attempt(pending, mended.indices, mended.skip), ready)
        return ready[ordinal] if ordinal in ready else repair.finished.pop(ordinal)

    def _attempt(self, pending: Pending, indices: Any, skip: dict[int, bool]) -> Result:
        redo = pending.task.id
        self._task_count += 1
        task = pending.task = Task(self._task_count, indices, draw=self._plan.draw(pending.ordinal), redo=redo)
        if not self._runner.streams:
            treated = self._account.treat(indices, batched=self._batched)
            task.indices, task.skip = treated.indices, {**treated.skip, **skip}
            assert self._repair is not None
            self._repair.begin(pending.ordinal, treated)
        result = self._runner.attempt(task, -1, self._room())
        if result.notes is not None:
            self._receipts.hold(result.notes.receipts)
        return result

    def _take(self) -> Any:
        return self._held.pop() if self._held else next(self._plan)

    def close(self) -> None:
        """Nothing is running; here so that both kinds of batches can be ended alike."""


_VOID = object()
"""Stands in for a batch of which no sample is left."""


class CrewBatches(Iterator[Any]):
    """Batches that workers make.

    The workers end with the epoch, or with this object if they are persistent; in both cases also when the object is
    dropped, or the program ends.
    """

    def __init__(self, crew: Crew, make_epoch: MakeEpoch, *, persistent: bool) -> None:
        self.crew = crew
        self._persistent = persistent
        self._ended = False
        self._death: BaseException | None = None
        self._finalizer = weakref.finalize(self, crew.close)
        self._bookmarks: list[Bookmark] = []
        weakref.finalize(self, _freeze, self._bookmarks).atexit = False
        try:
            self._epoch = make_epoch(crew)
            self._bookmarks[:] = [self._epoch.bookmark]
            crew.engine.start()
        except BaseException:
            crew.close()
            raise

    @property
    def closed(self) -> bool:
        """True when the workers are gone, or are those of the process that this one was forked from."""
        return self.crew.closed or self.crew.pid != os.getpid()

    def restart(self, make_epoch: MakeEpoch) -> None:
        """Begin another epoch with the same workers."""
        try:
            self._epoch.close()
            self.crew.epoch += 1
            self._ended = True  # until the new epoch has begun
            self._epoch = make_epoch(self.crew)
        except BaseException as exc:
            if not isinstance(exc, Exception):  # Ctrl-C, in the middle of bookkeeping
                self.crew.close()
            raise
        self._bookmarks[:] = [self._epoch.bookmark]
        self._ended = False

    def __next__(self) -> Any:
        if self._death is not None:
            raise self._death
        if self._ended or self.crew.closed:
            raise StopIteration
        if self.crew.pid != os.getpid():
            raise WorkerError(
                f"This iteration belongs to process {self.crew.pid}, from which this one was forked, and so do its "
                "workers. Begin another one: iter(loader)."
            )
        try:
            return next(self._epoch)
        except StopIteration:
            self._ended = True  # the rest is done outside: Ctrl-C is to be raised without this one as its context
        except Exception as exc:
            if self.closed:  # there is no going on after this
                self._death = twin_of(exc)
            raise
        except BaseException as exc:
            # Ctrl-C, in the middle of bookkeeping: who has which task is not known for sure any more.
            self.crew.close()
            self._death = WorkerError(
                f"This iteration was ended by {type(exc).__name__}. Begin another one, or go on where it was: "
                "loader.load_state_dict(loader.state_dict())."
            )
            raise
        self._epoch.progress.ended = True
        if not self._persistent:
            self.close()
        raise StopIteration

    def close(self) -> None:
        """Leave the epoch and end the workers. May be called twice."""
        self._ended = True
        if not self.closed:
            self._epoch.close()
            self.crew.close()
