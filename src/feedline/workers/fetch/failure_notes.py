"""Notes on an exception: which sample it is about, where that comes from, why it does not fit, and what to do.

Datasets wrap other datasets, and the failing sample belongs to the innermost one, where it has another index. Several
samples may be requested at once, and then the exception does not say which of them failed.
"""

from __future__ import annotations

import bisect
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from feedline.abc.source import Derived
from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import CollateError, CorruptSource
from feedline.system.failures import indices_text, samples_text
from feedline.types import DatasetKind

_PATIENCE_S = 2.0
"""How long to try samples one by one. A guess: the exception is delayed by this time."""
_ANSWERED = (CorruptSource, FileNotFoundError, IsADirectoryError, PermissionError)
"""Errors of a disk or a network that has answered."""

_MOST_LAYERS = 16
"""How many nested datasets are followed: a bound in case of a cycle."""


def notes_on(
    exc: BaseException,
    stage: str,
    index: object,
    dataset: object,
    spec: WorkerSpec,
    worker: int | None,
    samples: Sequence[object] = (),
) -> Iterator[str]:
    """Yield the notes to add to an exception.

    Args:
        exc: the exception.
        stage: where it came from: "fetch", "transform" or "collate".
        index: the sample; a list of candidates, if it is not known which.
        dataset: this worker's copy.
        spec: this worker's specification.
        worker: its number; None in the training process itself.
        samples: those on which the default collate function failed.
    """
    where = f"(stage: {stage})" if worker is None else f"(stage: {stage}, worker {worker})"
    if stage == "collate":
        is_stream = spec.kind is not DatasetKind.MAP  # whose index is the number of samples read so far
        yield f"While collating {f'a batch, after {index} samples' if is_stream else samples_text(index)} {where}."
        yield from _notes_on_misfit(exc, index, dataset, samples)
    elif isinstance(index, list):
        yield f"About one of the samples {indices_text(index)} {where}."
    else:
        origin = origin_text(dataset, index) if spec.kind is DatasetKind.MAP else ""
        yield f"About sample {index!r}{origin} {where}."


# -- where a sample comes from ---


# Any, throughout: a dataset is any object, and an index any that it understands.
def origin_text(dataset: Any, index: object) -> str:
    """Return text that adds a sample's origin to its name; empty if the dataset wraps no other."""
    path, inner = "", dataset
    for _ in range(_MOST_LAYERS):
        try:
            found = _origin(inner, index)
        except Exception:  # there is no such sample: the original exception is about that
            break
        if found is None:
            break
        below, index = found
        if getattr(inner, "dataset", None) is below:
            path += ".dataset"
        else:
            path += f".datasets[{next(number for number, part in enumerate(inner.datasets) if part is below)}]"
        inner = below
    return f", which is sample {index!r} of the {type(inner).__name__} in loader.dataset{path}" if path else ""


def _origin(dataset: object, index: Any) -> tuple[object, object] | None:
    """Return a sample's dataset and index inside a wrapper."""
    if isinstance(dataset, Derived):
        return dataset.origin(index)
    torch_data = sys.modules.get("torch.utils.data")
    if torch_data is not None and isinstance(dataset, torch_data.Subset):
        return dataset.dataset, dataset.indices[index]
    if torch_data is not None and isinstance(dataset, torch_data.ConcatDataset):
        place = index + len(dataset) if index < 0 else index
        number = bisect.bisect_right(dataset.cumulative_sizes, place)
        return dataset.datasets[number], place - (dataset.cumulative_sizes[number - 1] if number else 0)
    return None


def place_of_failed(exc: BaseException, dataset: Any, indices: list[object]) -> int | None:
    """Return which of the samples requested together an exception is about; None if that is not known.

    Requests them one by one, up to the first that fails in the same way.
    """
    if isinstance(exc, (MemoryError, OSError)) and not isinstance(exc, _ANSWERED):
        return None  # with a network or a disk, another attempt may take very long
    if not isinstance(exc, Exception):
        return None
    until = time.monotonic() + _PATIENCE_S
    for place, index in enumerate(indices):
        if time.monotonic() > until:
            return None
        try:
            dataset.__getitems__([index])
        except Exception as again:
            return place if type(again) is type(exc) else None
    return None


# -- why a sample does not fit into its batch ---


def _notes_on_misfit(exc: BaseException, indices: object, dataset: object, samples: Sequence[object]) -> Iterator[str]:
    """Name the sample that does not fit into its batch, if that is why the default collate function failed."""
    if not samples:
        return
    misfit = exc
    if not isinstance(exc, CollateError):
        try:
            from feedline.collate.default import collate_numpy  # most workers never need it

            collate_numpy(samples)
        # An import fails where no descriptor is left, and torch's nested tensors raise when asked for shapes: the first
        # error must be reported all the same.
        except Exception as looked:
            misfit = looked
    place = misfit.position if isinstance(misfit, CollateError) else None
    if place is None:  # all samples are alike, or they could not be inspected
        return
    if misfit is not exc:
        yield str(misfit)
    if isinstance(indices, list) and len(indices) == len(samples):
        index = indices[place]
        yield f"Sample {place} of the batch is sample {index!r} of the dataset{origin_text(dataset, index)}."
