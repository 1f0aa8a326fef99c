"""Fetchers: indices in, batch out. They know nothing of processes, threads or slots.

A fetcher tells its scope which sample it is about to ask for, so that each draws its own random numbers.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.framework import Gather
from feedline.abc.stateful import check_restorable, resumed, resumed_after
from feedline.fetch.awaiting import awaiting_fetcher, is_awaited
from feedline.fetch.guard import Asking, Guard
from feedline.fetch.seeded import SeededFetcher
from feedline.fetch.spans import SpanFetcher
from feedline.fetch.streams import Stream, StreamFetcher
from feedline.randomness.scope import Scope
from feedline.types import DatasetKind, IndexBlock, Resume, WorkerSpec

Fetcher = Callable[[Any], Any]
"""Makes the batch for what the plan asks; raises StopIteration when an iterable dataset has ended."""


def fetcher_for(
    dataset: Any, spec: WorkerSpec, scope: Scope, resume: Resume | None = None, guard: Guard | None = None
) -> Fetcher:
    """Choose the quickest way to make batches of `dataset` that gives the same result as the slowest.

    For an iterable dataset this calls `iter(dataset)`. With a guard, samples that fail are dealt with.
    """
    collate = spec.framework.bind_collate(spec.collate)
    if resume is not None and resume.dataset is not None:
        check_restorable(dataset)
        anew = resume.is_before and spec.kind is DatasetKind.ITERABLE
        dataset = (resumed_after if anew else resumed)(dataset, resume.dataset)
    if spec.kind is DatasetKind.ITERABLE:
        stream = Stream(dataset, scope, resume)
        if spec.split is not None:
            return SpanFetcher(stream, collate, spec, scope, guard)
        return StreamFetcher(stream, collate, spec, scope, guard)
    if is_awaited(dataset):
        return awaiting_fetcher(dataset, collate, spec, scope, guard)
    gather = spec.framework.gather_for(dataset, spec.collate) if spec.batched else None
    if guard is not None:
        return _guarded(gather, dataset, collate, spec, scope, guard)
    if gather is not None:
        return _gathering(gather, dataset, collate, scope)
    if scope.seeds_globals:
        return SeededFetcher(_asking(dataset, collate, spec), scope)
    if not spec.batched:
        return _single(dataset, collate, scope)
    if getattr(dataset, "__getitems__", None):
        return _together(dataset, collate, scope)
    return _each(dataset, collate, scope)


def _guarded(
    gather: Gather | None, dataset: Any, collate: Callable[[Any], Any], spec: WorkerSpec, scope: Scope, guard: Guard
) -> Fetcher:
    together = spec.batched and bool(getattr(dataset, "__getitems__", None))
    plain = _asking(dataset, collate, spec)
    how = guard.guarded(plain, together=together)
    if scope.seeds_globals:
        slow: Fetcher = SeededFetcher(how, scope)
    elif not together:
        slow = guard.each(dataset, plain)
    else:

        def slow(indices: Any) -> Any:
            samples = [how.ask(item) for item in scope.following(how.items(indices))]
            scope.collate()
            return how.join(samples)

    if gather is None:
        return slow
    quick = _gathering(gather, dataset, collate, scope)

    def fetch(indices: Any) -> Any:
        if guard.is_clear:
            try:
                return quick(indices)
            except Exception:
                scope.begin_again()  # which sample it was is found out one by one
        return slow(indices)

    return fetch


def _single(dataset: Any, collate: Callable[[Any], Any], scope: Scope) -> Fetcher:
    def fetch(index: Any) -> Any:
        sample = dataset[_plain(index)]
        scope.collate()
        return collate(sample)

    return fetch


def _together(dataset: Any, collate: Callable[[Any], Any], scope: Scope) -> Fetcher:
    def fetch(indices: Any) -> Any:
        samples = dataset.__getitems__(_plain(indices))
        scope.collate()
        return collate(samples)

    return fetch


def _each(dataset: Any, collate: Callable[[Any], Any], scope: Scope) -> Fetcher:
    def fetch(indices: Any) -> Any:
        samples = [dataset[index] for index in scope.following(_listed(indices))]
        scope.collate()
        return collate(samples)

    return fetch


def _listed(indices: Any) -> Any:
    """Return indices that are asked for one by one."""
    if type(indices) is IndexBlock:
        return indices.array.tolist()
    return indices if type(indices) in (list, tuple) else list(indices)


def _asking(dataset: Any, collate: Callable[[Any], Any], spec: WorkerSpec) -> Asking:
    ask = functools.partial(operator.getitem, dataset)
    draws = not spec.framework.is_default_collate(spec.collate)
    if not spec.batched:
        return Asking(ask, lambda index: [_plain(index)], lambda samples: collate(samples[0]), draws)
    together = getattr(dataset, "__getitems__", None)
    if together:
        return Asking(together, lambda indices: [_plain(indices)], lambda samples: collate(samples[0]), draws)
    return Asking(ask, _listed, collate, draws)


def draws_apart(dataset: Any) -> bool:
    """True if samples are asked for one by one, so that a batch can be split and still draw the same numbers."""
    return not getattr(dataset, "__getitems__", None)


def _plain(indices: Any) -> Any:
    """Turn feedline's own index blocks into the list of ints that datasets expect; leave all else as it is."""
    return indices.array.tolist() if type(indices) is IndexBlock else indices


def _gathering(gather: Gather, dataset: Any, collate: Callable[[Any], Any], scope: Scope) -> Fetcher:
    several = getattr(dataset, "__getitems__", None)

    def fetch(indices: Any) -> Any:
        array = indices.array if type(indices) is IndexBlock else _as_index_array(indices)
        if array is not None and len(array):
            try:
                batch = gather(array)
            except IndexError:
                batch = None  # the dataset itself has the right error for it
            if batch is not None:
                return batch
        if several is not None:
            return collate(several(_plain(indices)))
        samples = [dataset[index] for index in scope.following(_listed(indices))]
        scope.collate()
        return collate(samples)

    return fetch


def _as_index_array(indices: Any) -> NDArray[np.int64] | None:
    """Return what a sampler yielded as an array; None if it is none of integers."""
    try:
        array = np.asarray(indices)
    except ValueError:  # lists of lists of different lengths, for one
        return None
    return array.astype(np.int64, copy=False) if array.dtype.kind in "iu" and array.ndim == 1 else None
