"""Notes on an exception: the sample, stage and worker that it is about, and what to do if that is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from feedline.abc.worker_spec import WorkerSpec
from feedline.collate import fields
from feedline.collate.mismatch import date_in, mismatch_of
from feedline.errors import CollateError
from feedline.system.failures import indices_text, words
from feedline.types import DatasetKind
from feedline.types.arrays import is_arrays
from feedline.workers.fetch.origins import told_origin


# Any: a dataset and its indices are of any type.
def notes_on(
    exc: BaseException, stage: str, index: Any, dataset: Any, spec: WorkerSpec, worker: int | None, samples: Any = None
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
        yield f"While samples {indices_text(index)} were made a batch {where}."
        yield from _notes_on_misfit(exc, index, dataset, samples)
    elif isinstance(index, list):
        yield f"About one of the samples {indices_text(index)} {where}."
    else:
        origin = told_origin(dataset, index) if spec.kind is DatasetKind.MAP else ""
        yield f"About sample {index!r}{origin} {where}."
    if isinstance(exc, TypeError) and "datetime" in str(exc) and samples:
        yield from _notes_on_dates(samples[0])
    if isinstance(exc, KeyError) and isinstance(dataset, Mapping) and is_arrays(dataset):
        yield (
            "The dataset is a dict of arrays, which has no samples 0, 1, 2 and so on: torch's loader looks for these "
            "among its keys. Give the loader feedline.datasets.ArrayDataset(arrays), whose samples are dicts with a "
            "value of each array."
        )


def _notes_on_misfit(exc: BaseException, indices: Any, dataset: Any, samples: Any) -> Iterator[str]:
    """Name the sample that does not fit into its batch, if that is why the default collate function failed."""
    try:
        mismatch = mismatch_of(samples) if samples else None
    except Exception as looked:  # torch's nested tensors raise when asked for their shape: the first error counts
        yield f"Which sample does not fit could not be found out: looking at them has failed, too ({words(looked)})."
        return
    if mismatch is None:
        return
    place, told = mismatch
    if not isinstance(exc, CollateError):  # a CollateError already says it
        yield told
    if isinstance(indices, list) and len(indices) == len(samples):
        index = indices[place]
        yield f"Sample {place} of the batch is sample {index!r} of the dataset{told_origin(dataset, index)}."


def _notes_on_dates(sample: Any) -> Iterator[str]:
    """Name the field with dates that torch's collate function rejected."""
    path = date_in(sample)
    if path is not None:
        yield (
            f"Samples have a date or time{fields.inside(path)}, and torch has no tensors of these. Make a number or a "
            "string of it in the dataset or its transform=, leave it out with fields=, read it from CSV with types= "
            "as 'string', or take feedline.Loader, whose batches hold datetime64 arrays."
        )
