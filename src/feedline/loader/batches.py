"""Batches that a crew makes, and how an epoch with workers begins."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from feedline.abc.source import SplitSource
from feedline.abc.stateful import is_stateful, outlives_epoch
from feedline.engines import interrupts
from feedline.errors import BadState, WorkerError
from feedline.failures import is_interrupt, twin_of
from feedline.loader.account import Account
from feedline.loader.bookmark import Bookmark, notes_of, resume_of
from feedline.loader.crew import Crew
from feedline.loader.exclusive import ExclusiveBatches
from feedline.loader.limits import Limits
from feedline.loader.map_epoch import MapEpoch
from feedline.loader.progress import StreamProgress
from feedline.loader.receipts import Receipts
from feedline.loader.settings import Settings
from feedline.loader.stream_epoch import Request, StreamEpoch
from feedline.state import Snapshot
from feedline.types import DatasetKind, Resume, WorkerSpec

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
    if not outlives_epoch(spec.dataset):
        crew.last_notes.clear()
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
    limits = Limits(
        settings.window,
        max(1, settings.depth),
        deepens=settings.deepens,
        timeout_s=settings.timeout_s,
        kills_stuck=bool(settings.restarts),
    )
    streams = () if snapshot is None else snapshot.streams
    # Workers that have made batches, or begin where others ended, draw other random numbers than new ones.
    awaits = crew.epoch > 0 or any(stream.get("last") is not None for stream in streams)
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
            awaits_openings=awaits,
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
        awaits_openings=awaits and spec.split is None and is_stateful(spec.dataset),
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
    resumes = {worker: resume_of(stream, bookmark.batch_size) for worker, stream in enumerate(streams)}
    return {worker: resume for worker, resume in resumes.items() if resume.dataset is not None}


def _freeze(bookmarks: list[Bookmark]) -> None:
    for bookmark in bookmarks:
        interrupts.see_through(bookmark.freeze)


def ended_by(exc: BaseException | None) -> WorkerError:
    """Return what to say of an iteration that a signal has interrupted at a moment from which there is no going on."""
    what = "a signal" if exc is None else f"{type(exc).__name__}, which a signal handler raised"
    return WorkerError(
        f"This iteration was ended by {what}, in the middle of bookkeeping: who has which batch is not known for sure "
        "any more. Begin another one, or go on where it was, with nothing lost: "
        "loader.load_state_dict(loader.state_dict())."
    )


class CrewBatches(ExclusiveBatches):
    """Batches that workers make.

    The workers end with the epoch, or with this object if they are persistent; in both cases also when the object is
    dropped, or the program ends.
    """

    def __init__(self, crew: Crew, make_epoch: MakeEpoch, *, persistent: bool) -> None:
        super().__init__(crew.entrance)
        self.crew = crew
        self._persistent = persistent
        self._ended = False
        self._death: BaseException | None = None
        self._unopened_by: BaseException | None = None
        """What kept workers from telling how they began, where that is not known otherwise: no state can be told."""
        self._is_torn = False
        """True while books are changed. One that is so when nobody is inside was interrupted, and is of no more use."""
        self._finalizer = weakref.finalize(self, interrupts.see_through, crew.close)
        self._bookmarks: list[Bookmark] = []
        weakref.finalize(self, _freeze, self._bookmarks).atexit = False
        self._began_s = time.monotonic()
        try:
            self._epoch = make_epoch(crew)
            self._bookmarks[:] = [self._epoch.bookmark]
            crew.engine.start()
        except BaseException:
            crew.close()
            raise
        self._start_s = time.monotonic() - self._began_s

    @property
    def closed(self) -> bool:
        """True when the workers are gone, or of no more use, or those of the process that this one was forked from."""
        torn = self._is_torn and self._entrance.free
        return torn or self.leaving or self.crew.closed or self.crew.pid != os.getpid()

    def restart(self, make_epoch: MakeEpoch, *, inside: bool = False) -> None:
        """Begin another epoch with the same workers; `inside` if the caller is there already, as in `at_first`."""
        if inside:
            self._restart(make_epoch)
        else:
            self._begin_anew(lambda: self._restart(make_epoch))

    def _restart(self, make_epoch: MakeEpoch) -> None:
        self._is_torn = True
        try:
            self._epoch.close()
            self.crew.epoch += 1
            self._ended = True  # until the new epoch has begun
            self._unopened_by = None
            self._epoch = make_epoch(self.crew)
        except BaseException as exc:
            if is_interrupt(exc):
                self._end_by(exc)
            self._is_torn = False
            raise
        self._bookmarks[:] = [self._epoch.bookmark]
        self._ended = self._is_torn = False

    def settle(self) -> None:
        super().settle()
        if self._epoch.is_opened():
            return
        is_mine = self._entrance.is_mine()
        if not (self.closed or self._ended or is_mine):
            self._begin_anew(self._await_openings)
        elif not self._epoch.assume_openings() and (is_mine or self._unopened_by is not None):
            raise self._unopened_by or WorkerError(
                "The state cannot be told in this moment: state_dict() was called inside of next(), by a signal "
                "handler for one, and not all workers have told yet how their streams began in this epoch. Let the "
                "handler set a flag, and call state_dict() in the training loop."
            )

    def _await_openings(self) -> None:
        self._is_torn = True
        try:
            self._epoch.await_openings()
        except BaseException as exc:
            if is_interrupt(exc) or not isinstance(exc, Exception):
                self._end_by(exc)
                raise
            if self._is_over():  # there is no going on after this, and whoever asks for the next batch is told
                self._death = twin_of(exc)
            self._is_torn = False
            if not self._epoch.assume_openings():
                self._unopened_by = twin_of(exc)
                raise
        self._is_torn = False

    def _next(self) -> Any:
        if self._is_torn:
            self._end_by(None)
        if self._death is not None:
            raise self._death
        if self._ended or self.crew.closed:
            raise StopIteration
        if self.crew.pid != os.getpid():
            raise WorkerError(
                f"This iteration belongs to process {self.crew.pid}, from which this one was forked, and so do its "
                "workers. Begin another one: iter(loader)."
            )
        self._epoch.taken = None  # which was of the batch before
        self._is_torn = True
        try:
            batch = self._epoch.__next__()  # not next(), after which a signal could come
            self._is_torn = False
            if self.leaving:
                self._close()
            return batch
        except StopIteration:
            self._ended = True  # the rest is done outside: Ctrl-C is to be raised without this one as its context
        except BaseException as exc:
            if is_interrupt(exc):
                self._end_by(exc)
            elif self._is_over() and isinstance(exc, Exception):  # there is no going on after this
                self._death = twin_of(exc)
            self._is_torn = False
            raise
        self._is_torn = False
        ended = not self.leaving
        done_s = time.monotonic()
        if self.leaving or not self._persistent:
            self._close()
        else:
            self.crew.rest()
        if ended:
            self._epoch.progress.ended = True
            if not self._persistent:
                now_s = time.monotonic()
                self.crew.counters.passed(now_s - self._began_s, self._start_s + now_s - done_s)
        raise StopIteration

    def _is_over(self) -> bool:
        return self.crew.closed

    def _end_by(self, exc: BaseException | None) -> None:
        """End the iteration: it was interrupted, and its books are torn. What was not delivered comes again."""
        self._epoch.take_back()
        self._death = ended_by(exc)
        self._let_go()
        self._is_torn = False

    def close(self) -> None:
        if self.crew.pid == os.getpid():
            self.crew.leaving = True
            super().close()
        self._ended = True

    def _close(self) -> None:
        self._ended = True
        if not self.crew.closed:
            if not self._is_torn:
                self._epoch.close()
            self._let_go()

    def _let_go(self) -> None:
        self.crew.close()
        self._finalizer.detach()  # it has nothing left to do, and Python drops exceptions of signal handlers there
