"""Batches that take longer than they must: objects that are sent, floats, the collate function, padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedline.tune.finding import Finding, gain_of, seconds_text
from feedline.tune.measured import Batch, Measured, Samples
from feedline.values.sizes import bytes_text

_SENDING = 0.1
"""Share of a sample's time that its objects take to be sent."""
_SENDING_S = 1e-5
"""The same, for one sample: less is not noticed."""
_LARGE_FLOATS = 16 << 10
_CONVERTING = 0.95
"""Share of a sample's time that making floats of bytes can have been, at most."""
_COLLATING = 0.3
"""Share of a batch's time that goes into putting it together."""
_COLLATING_S = 1e-3
_COPIES = 3
"""Times what copying the arrays takes."""
_FEW_LENGTHS = 64
_PADDED = 0.2
"""Share of a batch that is padding. All of these are guesses."""


def find(measured: Measured) -> list[Finding]:
    """Return what is found about batches."""
    samples, batch = measured.samples, measured.batch
    if samples is None:
        return []
    found = [*_padding(measured, samples)]
    if batch is None:
        return found
    if batch.not_picklable is not None:
        return [*found, *_unsendable(measured, batch)]
    objects = list(_objects(measured, samples, batch))
    return [*found, *_floats(measured, samples, batch), *(objects or _collate(samples, batch))]


def _unsendable(measured: Measured, batch: Batch) -> Iterator[Finding]:
    if measured.engine not in ("thread", "inline"):
        yield Finding(
            "unsendable-batch",
            f"A batch cannot be sent from a worker process: {batch.not_picklable}",
            "Return arrays, tensors, numbers and texts from the dataset and the collate function; or use threads, "
            "which send nothing.",
            'DataLoader(dataset, engine="thread")',
            is_serious=True,
        )


def _objects(measured: Measured, samples: Samples, batch: Batch) -> Iterator[Finding]:
    """What is not arrays is pickled, whatever the transport."""
    now_s = samples.usual_s + measured.batch_share_s
    sent_s = batch.arena_s / batch.size
    is_mostly_objects = bool(batch.objects) and 2 * batch.object_bytes > batch.bytes
    if not is_mostly_objects or sent_s < max(_SENDING * now_s, _SENDING_S):
        return
    as_pickle = f"{bytes_text(batch.pickle_bytes / batch.size)} in {seconds_text(batch.pickle_s / batch.size)}"
    saved_s = (batch.write_s + batch.collate_s - batch.copy_s - batch.as_arrays_s) / batch.size
    yield Finding(
        "serialisation",
        f"{bytes_text(batch.object_bytes / batch.size)} of a sample are Python objects, most of all {batch.objects}: "
        f"they are pickled and read again, {seconds_text(sent_s)} for a sample that keeps a worker for "
        f"{seconds_text(now_s)} "
        f"(torch's loader pickles all of it: {as_pickle})",
        "Return arrays or tensors: they are written into shared memory as they are.",
        "return np.asarray(values, np.float32)",
        gain=gain_of(now_s, saved_s),
    )


def _floats(measured: Measured, samples: Samples, batch: Batch) -> Iterator[Finding]:
    now_s = samples.usual_s + measured.batch_share_s
    for field in batch.floats:
        if field.sample_bytes < _LARGE_FLOATS:
            continue
        what = "multiples of 1/255" if field.is_scaled else "whole numbers from 0 to 255"
        width = np.dtype(field.dtype).itemsize
        less = min(1.0, field.sample_bytes * batch.size / max(batch.bytes, 1)) * (1 - 1 / width)
        copied_s = batch.copy_s + (0.0 if measured.engine in ("inline", "thread") else batch.write_s)
        saved_s = min(field.convert_s, _CONVERTING * samples.usual_s) + less * copied_s / batch.size
        yield Finding(
            "floats",
            f"{field.name} is {field.dtype}, and all of its values are {what}: {bytes_text(field.sample_bytes)} a "
            f"sample where {bytes_text(field.sample_bytes / width)} would do",
            "Return uint8, and make floats of them on the device.",
            "batch.to(device, non_blocking=True).float()" + ("" if not field.is_scaled else ".div_(255)"),
            gain=gain_of(now_s, saved_s),
        )


def _collate(samples: Samples, batch: Batch) -> Iterator[Finding]:
    fetch_s = samples.usual_s * batch.size
    is_long = batch.collate_s > max(_COLLATING * (fetch_s + batch.collate_s), _COLLATING_S)
    if not is_long or batch.collate_s < _COPIES * batch.copy_s:
        return
    yield Finding(
        "slow-collate",
        f"{batch.collate} takes {seconds_text(batch.collate_s)} for a batch of {batch.size}, whose samples take "
        f"{seconds_text(fetch_s)} to be made; copying their arrays takes {seconds_text(batch.copy_s)}",
        "Put arrays together in one call (np.stack, torch.stack) instead of value by value; feedline.collate has "
        "functions for samples of different lengths."
        if batch.is_custom
        else "Return fewer and larger fields: one array of many numbers instead of many fields of one.",
        "DataLoader(dataset, collate_fn=feedline.collate.pad())" if batch.is_custom else None,
        gain=gain_of(fetch_s + batch.collate_s, batch.collate_s - batch.copy_s),
    )


def _padding(measured: Measured, samples: Samples) -> Iterator[Finding]:
    size = 32 if measured.batch is None else measured.batch.size
    lengths = np.array(samples.lengths)
    count = len(lengths) // size * size
    if size < 2 or len(lengths) < _FEW_LENGTHS or not count:
        return
    # They come in random order, as in shuffled batches.
    padded = lengths[:count].reshape(-1, size).max(axis=1).sum() * size
    bucketed = np.sort(lengths[:count]).reshape(-1, size).max(axis=1).sum() * size
    waste, left = (1 - lengths[:count].sum() / whole for whole in (padded, bucketed))
    if waste < _PADDED or padded < 1.1 * bucketed:
        return
    yield Finding(
        "padding",
        f"Samples have from {lengths.min()} to {lengths.max()} elements: {waste:.0%} of a batch of {size} is padding. "
        f"In batches of samples of similar length it is {left:.0%}",
        "Make batches of samples of similar length.",
        f"DataLoader(dataset, batch_sampler=feedline.samplers.LengthBucketBatchSampler(lengths, {size}))",
        gain=round(float(padded / bucketed), 2),
    )
