"""A dataset or loader that a user named, as arguments for loaders that differ only in their workers.

A measurement must not reach the end of an epoch, so samplers and iterable datasets are repeated endlessly.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset, RandomSampler

from feedline.datasets.derived.objects import open_object, users_traceback
from feedline.errors import DatasetFailed
from feedline.loader.torch import DataLoader
from feedline.samplers import InfiniteSampler
from feedline.system.failures import words
from feedline.system.timing import Clock
from feedline.tools.measure.fields import size_of
from feedline.tools.measure.given_loader import collate_of, is_loader, setup_of
from feedline.tools.measure.samples import making_of

BATCH_SIZE = 32
ENDLESS = 1 << 40
"""The length of an epoch that does not end."""
_KEPT = ("worker_init_fn", "multiprocessing_context", "timeout")
"""Arguments taken from a given loader, besides its samplers and its collate function."""


# Any, throughout: datasets, samplers and loader arguments of any kind.
@dataclass(frozen=True)
class Target:
    """A dataset to measure, with the arguments of its loaders."""

    dataset: Any
    options: dict[str, Any]
    """Arguments for torch's loader and feedline's."""
    batch_size: int
    """Samples in a batch; the mean if batches differ in size."""
    code: str
    """The first arguments of the loader, as a user writes them."""
    is_loader: bool = False


def open_target(source: str, batch_size: int | None = None) -> Target:
    """Return the target that `module:object` names; without `batch_size`, use the loader's, or 32.

    Raises BadOption: there is no such dataset; DatasetFailed: it cannot be made, or is empty.
    """
    return target_of(open_object(source), batch_size)


def target_of(opened: Any, batch_size: int | None = None) -> Target:
    """Return the target for a dataset or loader."""
    loader = opened if is_loader(opened) else None
    dataset = opened if loader is None else loader.dataset
    making = making_of(dataset)
    options: dict[str, object] = {}
    code = ["dataset"]
    if loader is not None:
        options = {name: value for name in _KEPT if (value := getattr(loader, name, None))}
        options["collate_fn"] = collate_of(loader)
    size = batch_size or (BATCH_SIZE if loader is None else setup_of(loader).batch_size)
    batches = getattr(loader, "batch_sampler", None)
    if making.is_map and batches is not None and batch_size is None:
        options["batch_sampler"] = Repeated(batches)
        size = size or _usual_size(batches)
    else:
        options["batch_size"] = size
        sampler = getattr(loader, "sampler", None)
        if making.is_map:
            options["sampler"] = (
                InfiniteSampler(range(making.length or 0), seed=0) if sampler is None else Repeated(sampler)
            )
    code += [f"batch_size={size}"]
    if making.is_map and (loader is None or isinstance(getattr(loader, "sampler", None), RandomSampler)):
        code += ["shuffle=True"]
    if not making.is_map:
        dataset = RepeatedStream(dataset)
    return Target(dataset, options, size or 1, ", ".join(code), loader is not None)


@dataclass(frozen=True)
class Made:
    """Batches made one after the other, without workers."""

    batch_s: float
    """Time of one batch."""
    cpu_s: float
    """The part of `batch_s` spent computing."""
    batch_bytes: int


def make_some(target: Target, *, seconds: float) -> Made:
    """Make batches without workers for some seconds, at least two. If that fails, workers need not be tried.

    The first batch is not timed: samples may open files or import modules then.

    Raises DatasetFailed: a sample or the collate function raises, or there are no samples.
    """
    until_s, sizes = time.monotonic() + seconds, list[int]()
    clock = Clock()
    before = clock.now()
    try:
        for batch in DataLoader(target.dataset, **target.options, num_workers=0):
            sizes.append(size_of(batch))
            if len(sizes) == 1:
                before = clock.now()
            elif time.monotonic() > until_s:
                break
        took_s, computed_s = clock.since(before)
    except (Exception, SystemExit) as exc:  # raised by user code, or by feedline because of it
        text = f"A batch could not be made: {type(exc).__name__}: {words(exc)}. Fix that, then run again."
        raise DatasetFailed(text, "raises", users_traceback(exc)) from exc
    if not sizes:
        raise DatasetFailed("The dataset is empty: it has no samples.", "empty")
    timed = max(len(sizes) - 1, 1)
    return Made(took_s / timed, min(computed_s, took_s) / timed, max(sizes))


class Repeated:
    """A sampler that is repeated endlessly."""

    def __init__(self, sampler: Iterable[object]) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return ENDLESS

    def __iter__(self) -> Iterator[object]:
        return _again(self._sampler)


class RepeatedStream(IterableDataset[object]):
    """An iterable dataset that is repeated endlessly."""

    def __init__(self, dataset: Iterable[object]) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[object]:
        return _again(self._dataset)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__") or name == "_dataset":  # not set yet while it is unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)


def _again(values: Iterable[object]) -> Iterator[object]:
    is_empty = False
    while not is_empty:
        is_empty = True
        for value in values:
            is_empty = False
            yield value


def _usual_size(batches: Iterable[Sized]) -> int:
    sizes = [len(indices) for indices in itertools.islice(batches, 20)]
    return max(1, round(sum(sizes) / max(len(sizes), 1)))
