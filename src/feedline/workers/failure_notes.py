"""Notes on an exception: the sample, stage and worker that it is about, and what to do if that is known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from feedline.abc.worker_spec import WorkerSpec
from feedline.errors import CollateError
from feedline.system.failures import indices_text, samples_text, words
from feedline.types import DatasetKind
from feedline.types.arrays import is_arrays
from feedline.workers.fetch.origins import origin_text


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
    if isinstance(exc, TypeError) and "datetime" in str(exc) and samples:
        yield from _notes_on_dates(samples[0])
    if isinstance(exc, KeyError) and isinstance(dataset, Mapping) and is_arrays(dataset):
        yield (
            "The dataset is a dict of arrays. Like torch's loader, this one looks up samples 0, 1, 2 and so on among "
            "its keys. Use feedline.datasets.ArrayDataset(arrays), whose samples are dicts with a value of each array."
        )


def _notes_on_misfit(exc: BaseException, indices: object, dataset: object, samples: Sequence[object]) -> Iterator[str]:
    """Name the sample that does not fit into its batch, if that is why the default collate function failed."""
    try:
        from feedline.collate.mismatch import mismatch_of  # most workers never need it

        mismatch = mismatch_of(samples) if samples else None
    # The import fails where no descriptor is left, and torch's nested tensors raise when asked for shapes: the first
    # error must be reported all the same.
    except Exception as looked:
        yield f"The sample that does not fit could not be found: inspecting the samples failed too ({words(looked)})."
        return
    if mismatch is None:
        return
    place, text = mismatch
    if not isinstance(exc, CollateError):  # a CollateError already contains it
        yield text
    if isinstance(indices, list) and len(indices) == len(samples):
        index = indices[place]
        yield f"Sample {place} of the batch is sample {index!r} of the dataset{origin_text(dataset, index)}."


def _notes_on_dates(sample: object) -> Iterator[str]:
    """Name the field with dates that torch's collate function rejected."""
    from feedline.collate import fields
    from feedline.collate.mismatch import date_in

    path = date_in(sample)
    if path is not None:
        yield (
            f"Samples have a date or time{fields.inside(path)}, and torch has no tensors of these. Convert it to a "
            "number or a string in the dataset or its transform=, leave it out with fields=, read it from CSV with "
            "types= as 'string', or use feedline.Loader, whose batches hold datetime64 arrays."
        )
