"""Fetchers: indices in, batch out. They know nothing about processes, threads or slots.

A fetcher notifies its scope which sample comes next, so that each sample draws its own random numbers.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.framework import Gather, Stale
from feedline.abc.stateful import check_restorable, outlives_epoch, resumed, resumed_after
from feedline.abc.worker_spec import WorkerSpec
from feedline.randomness.global_states import GlobalStates, globals_kept, seed_globals
from feedline.randomness.scope import Scope, Timed
from feedline.types import CollateFunction, DatasetKind, IndexBlock, MapStyle, Position
from feedline.workers.fetch.awaiting import Reader, batch_getter, is_awaited
from feedline.workers.fetch.guard import Asking, Guard, listed

Fetcher = Callable[[object], Any]
"""Makes the batch for an entry of the plan; raises StopIteration when an iterable dataset has ended."""


def fetcher_for(
    dataset: Any, spec: WorkerSpec, scope: Scope, resume: Position | None = None, guard: Guard | None = None
) -> Fetcher:
    """Choose the fastest way to make batches of `dataset` that gives the same result as the slowest.

    For an iterable dataset this calls `iter(dataset)`. A guard handles samples that fail.
    """
    collate = spec.framework.bind_collate(spec.collate)
    if spec.batched and spec.framework.is_default_collate(spec.collate):
        collate = _remembering(collate, scope)
    end = resume if resume is not None and resume.ended else None
    if end is not None:
        resume = end.next_epoch() if outlives_epoch(dataset) else None
    if resume is not None and resume.dataset is not None:
        check_restorable(dataset)
        anew = resume.is_before and spec.kind is DatasetKind.ITERABLE
        dataset = (resumed_after if anew else resumed)(dataset, resume.dataset)
    if spec.kind is DatasetKind.ITERABLE:
        from feedline.workers.fetch.cutting import StreamFetcher  # most loaders have no stream
        from feedline.workers.fetch.spans import SpanFetcher
        from feedline.workers.fetch.streams import Stream, begin_and_leave

        if resume is not None and resume.is_left:
            begin_and_leave(dataset)
        stream = Stream(dataset, scope, resume, guard, end)
        return (StreamFetcher if spec.sharding is None else SpanFetcher)(stream, collate, spec, scope, guard)
    reader = Reader(dataset, scope, guard, batched=spec.batched) if is_awaited(dataset) else None
    several = batch_getter(dataset) if spec.batched else None
    together = several is not None if reader is None else reader.is_together
    ask = several or functools.partial(operator.getitem, dataset)
    how = Asking.of(ask if reader is None else reader.ask, collate, spec, together)
    if guard is not None:
        how = guard.guarded(how, together=together)
    if reader is not None:
        return _asked(how if together else replace(how, items=reader.ahead(how.items)), scope)
    if scope.seeds_globals:
        fetch: Fetcher = SeededFetcher(how, scope)
    elif guard is None and not together and spec.batched:
        fetch = _each(dataset, collate, scope)
    else:
        fetch = _asked(how, scope)
    make = functools.partial(spec.framework.gather_for, dataset, spec.collate)
    gather = make() if spec.batched else None
    return fetch if gather is None else GatheringFetcher(gather, make, fetch, scope, guard)


def is_reusable(fetcher: Fetcher, dataset: object) -> bool:
    """True if a fetcher remembers nothing of an epoch, nor anything of the dataset that has changed."""
    if isinstance(fetcher, GatheringFetcher):
        return fetcher.is_current(dataset)
    return isinstance(fetcher, types.FunctionType)


def _remembering(collate: CollateFunction, scope: Scope) -> Callable[[object], object]:
    """Return a collate function that stores the samples it fails on in the scope, for the notes on the exception."""

    def remembering(samples: object) -> object:
        try:
            return collate(samples)
        except Exception:
            scope.unfit = samples if isinstance(samples, list) else None
            raise

    return remembering


def _asked(how: Asking, scope: Scope) -> Fetcher:
    def fetch(indices: object) -> object:
        samples = [how.ask(item) for item in scope.following(how.items(indices))]
        scope.collate()
        return how.join(samples)

    return fetch


def _each(dataset: MapStyle[object], collate: CollateFunction, scope: Scope) -> Fetcher:
    """As `_asked`, but faster: Python runs `dataset[index]` of a class in Python without a call from C."""

    def fetch(indices: object) -> object:
        items = indices.array.tolist() if type(indices) is IndexBlock else listed(indices)
        samples = [dataset[index] for index in scope.following(items)]
        scope.collate()
        return collate(samples)

    return fetch


class GatheringFetcher:
    """Makes batches in one vectorised step if possible, otherwise sample by sample.

    Args:
        gather: makes a batch in one step.
        make: makes such a function for the dataset as it is now; None if it consists of columns no more.
        slow: makes a batch sample by sample, and so raises the right error, or handles the one sample that fails.
        scope: notified if a batch is begun again.
        guard: handles samples that fail.
    """

    def __init__(
        self, gather: Gather, make: Callable[[], Gather | None], slow: Fetcher, scope: Scope, guard: Guard | None
    ) -> None:
        self._gather: Gather | None = gather
        self._make = make
        self.is_current: Callable[[object], bool] = getattr(gather, "is_current", lambda _: False)
        """True if the gathering function that was given still fits the dataset."""
        quick: Gather | None = getattr(gather, "quick", None)
        self._quick = quick
        self.quick = quick if guard is None else None
        self._slow = slow
        self._scope = scope
        self._guard = guard
        self._left_to_slow = IndexError if guard is None else Exception

    def __call__(self, indices: object) -> object:
        array = indices.array if type(indices) is IndexBlock else _as_index_array(indices)
        if array is not None and len(array) and (self._guard is None or not self._guard.skip):
            try:
                batch = self._gathered(array)
            except Stale:
                batch = None
                with suppress(Stale):  # if it always seems to have changed, samples are read one by one
                    self._gather, self._quick = self._make(), None
                    batch = self._gathered(array)
            if batch is not None:
                return batch
        return self._slow(indices)

    def _gathered(self, indices: NDArray[np.int64]) -> object:
        """Return a batch; None if it has to be made sample by sample. Raises Stale: the dataset has changed."""
        try:
            batch = None if self._quick is None else self._quick(indices)
            return self._gather(indices) if batch is None and self._gather is not None else batch
        except Stale:
            raise
        except self._left_to_slow:
            self._scope.begin_again()
            return None


def _as_index_array(indices: object) -> NDArray[np.int64] | None:
    """Return a sampler's indices as an array; None if they are not integers."""
    try:
        array = np.asarray(indices)
    except ValueError:  # for example lists of lists of different lengths
        return None
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" and array.ndim == 1 else None


_LOOKS = 4
"""Tasks without a draw after which a dataset is assumed not to draw. If that is wrong, one batch is made twice."""


class SeededFetcher:
    """Makes batches whose samples draw from seeded generators.

    Args:
        how: how samples are requested.
        scope: notified of each sample.
    """

    def __init__(self, how: Asking, scope: Scope) -> None:
        self._how = how
        self._unseeded = _asked(how, scope)
        self._scope = scope
        self._looks: int | None = 0
        """Tasks that drew nothing so far; None once something was drawn."""
        self._states: GlobalStates | None = None
        """The generators' states before the last batch that was expected to draw nothing."""

    def __call__(self, indices: object) -> object:
        if self._looks is not None and self._looks >= _LOOKS:
            batch = self._make_if_nothing_is_drawn(indices)
            if batch is not _DRAWN:
                return batch
        if not self._scope.keeps_globals:
            return self._make_seeded(indices)
        with globals_kept():
            return self._make_seeded(indices)

    def _make_if_nothing_is_drawn(self, indices: object) -> object:
        """Make a batch without seeding; if it draws something after all, undo that and return `_DRAWN`."""
        before = self._states = GlobalStates.now(self._states)
        failure: Exception | None = None
        try:
            batch = self._unseeded(indices)
        except Exception as exc:
            failure = exc
        if before.have_moved():
            before.restore()
            self._looks = None
            return _DRAWN
        if failure is None:
            return batch
        try:
            raise failure
        finally:
            del failure  # avoid a reference cycle: its traceback refers to this frame

    def _make_seeded(self, indices: object) -> object:
        scope, ask = self._scope, self._how.ask
        scope.begin_again()
        samples = []
        wanted = self._how.items(indices)
        items: Iterable[object] = wanted if scope.slow is None else Timed(wanted, scope.slow)
        for scope.place, item in enumerate(items):
            seed_globals(scope.key())
            samples.append(ask(item))
        drew = bool(samples) and self._looks is not None and not GlobalStates.now().is_seeded_with(scope.key())
        scope.collate()
        if self._how.join_draws:
            seed_globals(scope.key())
        batch = self._how.join(samples)
        if self._looks is not None:
            if self._how.join_draws:
                drew = drew or not GlobalStates.now().is_seeded_with(scope.key())
            self._looks = None if drew else self._looks + 1
        return batch


_DRAWN = object()
