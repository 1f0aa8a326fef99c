"""What `iter(loader)` returns: batches made inline, or by a crew."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from feedline.abc.stateful import is_stateful
from feedline.engines.runner import Runner
from feedline.errors import BadState, WorkerDied
from feedline.loader.bookmark import Bookmark, notes_of, resume_of
from feedline.loader.crew import Counters, Crew, Prepare
from feedline.loader.map_epoch import Limits, MapEpoch
from feedline.loader.progress import StreamProgress
from feedline.loader.settings import Settings
from feedline.loader.stream_epoch import Request, StreamEpoch
from feedline.state import Snapshot
from feedline.transport.arena import Arena
from feedline.transport.room import LocalRoom
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
) -> Epoch:
    """Begin a pass over a dataset, or the rest of one, with workers."""
    epoch = _epoch(crew, settings, spec, bookmark, snapshot, shared_seed)
    epoch.bookmark = bookmark
    return epoch


def _epoch(
    crew: Crew,
    settings: Settings,
    spec: WorkerSpec,
    bookmark: Bookmark,
    snapshot: Snapshot | None,
    shared_seed: int | None,
) -> Epoch:
    entry = bookmark.entry
    limits = Limits(settings.window, max(1, settings.depth), settings.timeout_s)
    streams = () if snapshot is None else snapshot.streams
    entry.progress.turn = 0 if snapshot is None else snapshot.turn
    if spec.kind is DatasetKind.ITERABLE and spec.split is None:
        if streams and len(streams) != len(crew.workers):
            raise BadState(
                f"The state was saved with {len(streams)} streams of samples, one per worker, and there are "
                f"{len(crew.workers)} workers now. Use as many, or let the loader share out the samples (shard=True): "
                "then the number may change."
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
    )


def _begun(stream: dict[str, Any]) -> StreamProgress:
    batches = stream.get("batches", 0)
    return StreamProgress(batches, stream.get("ended", False), notes_of(stream), stream.get("noted_at", batches))


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
    ) -> None:
        runner = Runner(spec, None)
        streams = () if snapshot is None else snapshot.streams
        if len(streams) > 1:
            raise BadState(
                f"The state was saved with {len(streams)} workers, whose dataset or stream each had a state of its "
                "own, and there are none now. Use as many workers as then."
            )
        assert bookmark.plan is not None
        runner.begin(bookmark.plan.draw(0), resume_of(streams[0], bookmark.batch_size) if streams else None)
        progress = bookmark.entry.progress
        self._already = frozenset(() if snapshot is None else snapshot.early)
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

    def __next__(self) -> Any:
        progress = self._progress
        try:
            indices = self._take()
            while self._already and self._ordinal in self._already:
                self._ordinal += 1
                indices = self._take()
        except StopIteration:
            progress.ended = True
            raise
        ordinal = self._ordinal
        self._ordinal += 1
        arena = self._arena
        try:
            batch = self._runner.make(indices, self._plan.draw(ordinal), None if arena is None else LocalRoom(arena))
        except StopIteration:
            progress.ended = self._runner.streams
            raise
        except Exception:
            progress.note(ordinal)
            raise
        except BaseException:  # an interrupt: the batch was not delivered, and is made when it is asked for again
            self._held.append(indices)
            self._ordinal = ordinal
            raise
        progress.note(ordinal)
        self._counters.batches += 1
        return batch if self._prepare is None else self._prepare(batch)

    def _take(self) -> Any:
        return self._held.pop() if self._held else next(self._plan)

    def close(self) -> None:
        """Nothing is running; here so that both kinds of batches can be ended alike."""


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
        """True when the workers are gone."""
        return self.crew.closed

    def restart(self, make_epoch: MakeEpoch) -> None:
        """Begin another epoch with the same workers."""
        self._epoch.close()
        self.crew.epoch += 1
        self._ended = True  # until the new epoch has begun
        self._epoch = make_epoch(self.crew)
        self._bookmarks[:] = [self._epoch.bookmark]
        self._ended = False

    def __next__(self) -> Any:
        if self._death is not None:
            raise self._death
        if self._ended or self.crew.closed:
            raise StopIteration
        try:
            return next(self._epoch)
        except StopIteration:
            self._ended = True
            self._epoch.progress.ended = True
            if not self._persistent:
                self.close()
            raise
        except WorkerDied as exc:
            self._death = exc
            raise

    def close(self) -> None:
        """Leave the epoch and end the workers. May be called twice."""
        self._ended = True
        if not self.crew.closed:
            self._epoch.close()
            self.crew.close()
