"""Fetchers: indices in, batch out. They know nothing of processes, threads or slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.abc.framework import Gather
from feedline.types import DatasetKind, IndexBlock, WorkerSpec

Fetcher = Callable[[Any], Any]
"""Makes the batch for what the plan asks; raises StopIteration when an iterable dataset has ended."""


def fetcher_for(dataset: Any, spec: WorkerSpec) -> Fetcher:
    """Choose the quickest way to make batches of `dataset` that gives the same result as the slowest.

    For an iterable dataset this calls `iter(dataset)`.
    """
    collate = spec.framework.bind_collate(spec.collate)
    if spec.kind is DatasetKind.ITERABLE:
        stream = iter(dataset)
        if not spec.batched:
            return lambda _: collate(next(stream))
        return _StreamFetcher(stream, collate, spec.drop_last)
    if not spec.batched:
        return lambda index: collate(dataset[_plain(index)])
    gather = spec.framework.gather_for(dataset, spec.collate)
    if gather is not None:
        return _gathering(gather, dataset, collate)
    if getattr(dataset, "__getitems__", None):
        return lambda indices: collate(dataset.__getitems__(_plain(indices)))
    return lambda indices: collate([dataset[index] for index in _plain(indices)])


def _plain(indices: Any) -> Any:
    """Turn feedline's own index blocks into the list of ints that datasets expect; leave all else as it is."""
    return indices.array.tolist() if type(indices) is IndexBlock else indices


def _gathering(gather: Gather, dataset: Any, collate: Callable[[Any], Any]) -> Fetcher:
    def fetch(indices: Any) -> Any:
        array = indices.array if type(indices) is IndexBlock else _as_array(indices)
        if array is not None and array.dtype.kind in "iu" and array.ndim == 1 and len(array):
            try:
                return gather(array.astype(np.int64, copy=False))
            except IndexError:
                pass  # the dataset itself has the right error for it
        return collate([dataset[index] for index in _plain(indices)])

    return fetch


def _as_array(indices: Any) -> NDArray[Any] | None:
    """Return what a sampler yielded as an array; None if it is none, like lists of lists of different lengths."""
    try:
        return np.asarray(indices)
    except ValueError:
        return None


class _StreamFetcher:
    """Cuts a stream of samples into batches."""

    def __init__(self, stream: Iterator[Any], collate: Callable[[Any], Any], drop_last: bool) -> None:
        self._stream = stream
        self._collate = collate
        self._drop_last = drop_last
        self._ended = False

    def __call__(self, count: int) -> Any:
        if self._ended:
            raise StopIteration
        samples = []
        for _ in range(count):
            try:
                samples.append(next(self._stream))
            except StopIteration:
                self._ended = True
                break
        if not samples or (self._drop_last and len(samples) < count):
            raise StopIteration
        return self._collate(samples)
