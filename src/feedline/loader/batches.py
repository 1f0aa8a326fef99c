"""Batches that a crew makes, and how an epoch with workers begins."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from feedline.abc.source import SplitSource
from feedline.abc.stateful import is_stateful
from feedline.errors import BadState, WorkerError
from feedline.failures import twin_of
from feedline.loader.account import Account
from feedline.loader.bookmark import Bookmark, notes_of, resume_of
from feedline.loader.crew import Crew
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
    resumes = {worker: resume_of(stream, bookmark.batch_size) for worker, stream in enumerate(streams)}
    return {worker: resume for worker, resume in resumes.items() if resume.dataset is not None}


def _freeze(bookmarks: list[Bookmark]) -> None:
    for bookmark in bookmarks:
        bookmark.freeze()


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
        if self._persistent:
            self.crew.rest()
        else:
            self.close()
        raise StopIteration

    def close(self) -> None:
        """Leave the epoch and end the workers. May be called twice."""
        self._ended = True
        if not self.closed:
            self._epoch.close()
            self.crew.close()
