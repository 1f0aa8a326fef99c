"""What `iter(loader)` returns: batches made inline, or by a crew."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from feedline import memory
from feedline.engines.runner import Runner
from feedline.errors import WorkerDied
from feedline.loader.crew import Counters, Crew, Prepare
from feedline.loader.map_epoch import MapEpoch
from feedline.loader.settings import Settings
from feedline.loader.stream_epoch import StreamEpoch
from feedline.transport.arena import Arena
from feedline.transport.room import LocalRoom
from feedline.types import DatasetKind, WorkerSpec

Epoch = MapEpoch | StreamEpoch
MakeEpoch = Callable[[Crew], Epoch]


def begin_epoch(
    crew: Crew, settings: Settings, kind: DatasetKind, plan: Iterator[Any], shared_seed: int | None = None
) -> Epoch:
    """Begin a pass over a dataset. The plan of an iterable dataset is the same request over and over."""
    if kind is DatasetKind.ITERABLE:
        return StreamEpoch(
            crew,
            next(plan),
            settings.depth,
            in_order=settings.in_order,
            timeout_s=settings.timeout_s,
            shared_seed=shared_seed,
        )
    return MapEpoch(crew, plan, settings.make_scheduler(), settings.window, settings.timeout_s, max(1, settings.depth))


class InlineBatches(Iterator[Any]):
    """Makes each batch when it is asked for, in the thread that asks."""

    def __init__(
        self, spec: WorkerSpec, plan: Iterator[Any], arena: Arena | None, counters: Counters, prepare: Prepare | None
    ) -> None:
        runner = Runner(spec, None)
        if runner.trouble is not None:
            raise runner.trouble
        assert runner.fetch is not None
        self._fetch = runner.fetch
        self._plan = plan
        self._arena = arena
        self._counters = counters
        self._prepare = prepare

    def __next__(self) -> Any:
        indices = next(self._plan)
        if self._arena is None:
            batch = self._fetch(indices)
        else:
            memory.set_current(LocalRoom(self._arena))
            try:
                batch = self._fetch(indices)
            finally:
                memory.set_current(None)
        self._counters.batches += 1
        return batch if self._prepare is None else self._prepare(batch)

    def close(self) -> None:
        """Nothing is running; here so that both kinds of batches can be ended alike."""


class CrewBatches(Iterator[Any]):
    """Batches that workers make.

    The workers end with the epoch, or with this object if they are persistent; in both cases also when the object is
    dropped, or the program ends.
    """

    def __init__(self, crew: Crew, make_epoch: MakeEpoch, *, persistent: bool) -> None:
        self._crew = crew
        self._persistent = persistent
        self._ended = False
        self._death: BaseException | None = None
        self._finalizer = weakref.finalize(self, crew.close)
        try:
            self._epoch = make_epoch(crew)
            crew.engine.start()
        except BaseException:
            crew.close()
            raise

    @property
    def closed(self) -> bool:
        """True when the workers are gone."""
        return self._crew.closed

    def restart(self, make_epoch: MakeEpoch) -> None:
        """Begin another epoch with the same workers."""
        self._epoch.close()
        self._crew.epoch += 1
        self._ended = True  # until the new epoch has begun
        self._epoch = make_epoch(self._crew)
        self._ended = False

    def __next__(self) -> Any:
        if self._death is not None:
            raise self._death
        if self._ended or self._crew.closed:
            raise StopIteration
        try:
            return next(self._epoch)
        except StopIteration:
            self._ended = True
            if not self._persistent:
                self.close()
            raise
        except WorkerDied as exc:
            self._death = exc
            raise

    def close(self) -> None:
        """Leave the epoch and end the workers. May be called twice."""
        self._ended = True
        if not self._crew.closed:
            self._epoch.close()
            self._crew.close()
