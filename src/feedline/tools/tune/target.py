"""What a user named, a dataset or a loader, as arguments of loaders that differ in their workers only.

Whoever measures must not come to the end of an epoch: samplers are gone through again and again, and so are iterable
datasets.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset, RandomSampler

from feedline.datasets.objects import open_object, users_traceback
from feedline.errors import DatasetFailed
from feedline.loader.torch import DataLoader
from feedline.samplers import InfiniteSampler
from feedline.system.failures import words
from feedline.system.timing import Clock
from feedline.tools.tune.probing.loading import collate_of, facts_of, is_loader
from feedline.tools.tune.probing.process import making_of
from feedline.tools.tune.probing.sampling import size_of

BATCH_SIZE = 32
_ENDLESS = 1 << 40
_LEAST_BATCHES = 2
_KEPT = ("worker_init_fn", "multiprocessing_context", "timeout")
"""Arguments of a loader that others get as they are, besides its samplers and its collate function."""


# Any, throughout: datasets, samplers and arguments of loaders of any kind.
@dataclass(frozen=True)
class Target:
    """What is measured."""

    dataset: Any
    options: dict[str, Any]
    """Arguments of loaders, of torch's and of feedline's."""
    batch_size: int
    """Samples in a batch, or about so many."""
    code: str
    """The first arguments of the loader as a user writes them."""
    is_loader: bool = False


def open_target(source: str, batch_size: int | None = None) -> Target:
    """Return what `module:object` names; `batch_size` is that of a loader, or 32, if it is None.

    Raises BadOption: there is no such thing; DatasetFailed: it cannot be made, or is empty.
    """
    return target_of(open_object(source), batch_size)


def target_of(opened: Any, batch_size: int | None = None) -> Target:
    """Return the same for a dataset or loader."""
    loader = opened if is_loader(opened) else None
    dataset = opened if loader is None else loader.dataset
    making = making_of(dataset, 0.0)
    options: dict[str, Any] = {}
    code = ["dataset"]
    if loader is not None:
        options = {name: value for name in _KEPT if (value := getattr(loader, name, None))}
        options["collate_fn"] = collate_of(loader)
    size = batch_size or (BATCH_SIZE if loader is None else facts_of(loader).batch_size)
    batches: Any = getattr(loader, "batch_sampler", None)
    if making.is_map and batches is not None and batch_size is None:
        options["batch_sampler"] = Repeated(batches)
        size = size or _usual_size(batches)
    else:
        options["batch_size"] = size
        sampler: Any = getattr(loader, "sampler", None)
        if making.is_map:
            drawn = sampler is None
            options["sampler"] = InfiniteSampler(range(making.length or 0), seed=0) if drawn else Repeated(sampler)
    code += [f"batch_size={size}"]
    if making.is_map and (loader is None or isinstance(getattr(loader, "sampler", None), RandomSampler)):
        code += ["shuffle=True"]
    if not making.is_map:
        dataset = RepeatedStream(dataset)
    return Target(dataset, options, size or 1, ", ".join(code), loader is not None)


@dataclass(frozen=True)
class Made:
    """Batches that were made one after the other, without workers."""

    batch_s: float
    """Time of one."""
    cpu_s: float
    """How much of that is computing."""
    batch_bytes: int


def make_some(target: Target, *, seconds: float) -> Made:
    """Make batches for some seconds, two at least: what cannot be made so need not be tried with workers.

    Raises DatasetFailed: a sample or the collate function raises, or there are no samples.
    """
    until_s, sizes = time.monotonic() + seconds, list[int]()
    clock = Clock()
    before = clock.now()
    try:
        for batch in DataLoader(target.dataset, **target.options, num_workers=0):
            sizes.append(size_of(batch))
            if len(sizes) >= _LEAST_BATCHES and time.monotonic() > until_s:
                break
        took_s, computed_s = clock.since(before)
    except (Exception, SystemExit) as exc:  # of the user's, or feedline's word about it
        text = f"A batch could not be made: {type(exc).__name__}: {words(exc)}. Correct that, and run again."
        raise DatasetFailed(text, "raises", users_traceback(exc)) from exc
    finally:
        clock.close()
    if not sizes:
        raise DatasetFailed("The dataset is empty: it has no samples.", "empty")
    return Made(took_s / len(sizes), min(computed_s, took_s) / len(sizes), max(sizes))


class Repeated:
    """A sampler that is gone through again and again."""

    def __init__(self, sampler: Iterable[Any]) -> None:
        self._sampler = sampler

    def __len__(self) -> int:
        return _ENDLESS

    def __iter__(self) -> Iterator[Any]:
        return _again(self._sampler)


class RepeatedStream(IterableDataset[Any]):
    """An iterable dataset that is gone through again and again."""

    def __init__(self, dataset: Iterable[Any]) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return _again(self._dataset)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_dataset":  # while it is unpickled there is none
            raise AttributeError(name)
        return getattr(self._dataset, name)


def _again(values: Iterable[Any]) -> Iterator[Any]:
    is_empty = False
    while not is_empty:
        is_empty = True
        for value in values:
            is_empty = False
            yield value


def _usual_size(batches: Iterable[Any]) -> int:
    sizes = [len(indices) for indices in itertools.islice(batches, 20)]
    return max(1, round(sum(sizes) / max(len(sizes), 1)))
