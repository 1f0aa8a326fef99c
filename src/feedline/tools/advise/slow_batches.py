"""Batches that take longer than necessary to collate and to send: objects, floats, the collate function, padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedline.insight.stats import shown
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, gain_of
from feedline.tools.measure.measured import Batch, Measured, Samples, field_in

_LARGE_FLOATS = 16 << 10
_CONVERTING = 0.95
"""Upper bound for the share of a sample's time spent on converting bytes to floats."""
_CARRYING = 0.3
"""Share of a batch's time spent on collating and sending it."""
_CARRYING_S = 5e-4
_COPIES = 4
"""Collating and sending may take this many times as long as copying the arrays."""
_MANY_FIELDS = 16
"""With this many fields or more, the default collate function is slow because of them. Few fields cannot be collated
faster."""
_FEW_LENGTHS = 64
_PADDED = 0.2
"""Share of a batch that is padding. All of these are guesses."""


def find(measured: Measured) -> list[Finding]:
    """Return the findings about batches."""
    samples, batch = measured.samples, measured.batch
    if samples is None:
        return []
    found = [*_padding(measured, samples)]
    if batch is None or batch.not_picklable is not None:
        return found
    return [*found, *_floats(measured, samples, batch), *_carrying(measured, samples, batch)]


_AS_ARRAYS = {
    "numbers": ("Return an array: it is written into shared memory as it is.", "{field} = np.asarray({field})"),
    "texts": (
        "Join the texts of a sample into one, and split it where the texts are used.",
        '{field} = "\\0".join({field})\n# in the training loop, for each text of the batch:\ntexts = text.split("\\0")',
    ),
    "": ("Return arrays or tensors: they are written into shared memory as they are.", None),
}
"""Fix and code, by `Batch.object_kind`."""


def _carrying(measured: Measured, samples: Samples, batch: Batch) -> Iterator[Finding]:
    """Report batches that take long to collate and to send, if it is known what takes so long."""
    fetch_s, spent_s = samples.usual_s * batch.size, batch.collate_s + batch.sent_s
    limit_s = max(_CARRYING / (1 - _CARRYING) * fetch_s, _COPIES * batch.copy_s)
    if spent_s < max(limit_s, _CARRYING_S):
        return
    then_s, code = batch.by_default_s, None
    if batch.by_default_s is not None:
        cause = f"{batch.collate} makes the batch that the default makes in {shown(batch.by_default_s)}"
        fix, code = "Leave out collate_fn: the default makes the same batches.", "DataLoader(dataset)"
    elif 2 * batch.object_bytes > batch.bytes and batch.objects:
        then_s = batch.as_arrays_s
        cause = f"{bytes_text(batch.object_bytes)} of it are objects, which are pickled, the largest {batch.objects}"
        fix, code = _AS_ARRAYS[batch.object_kind]
        code = code and code.format(field=field_in("sample", batch.objects.partition(" ")[0]))
    elif batch.is_custom:
        cause = f"{batch.collate} takes {shown(batch.collate_s)}"
        fix = "Stack arrays in one call (np.stack, torch.stack) instead of value by value."
    elif batch.fields >= _MANY_FIELDS:
        cause = f"Samples have {batch.fields} fields, which are collated one by one"
        fix = "Return fewer and larger fields: one array of many numbers instead of many fields of one."
    else:
        return
    yield Finding(
        "slow-collate",
        f"A batch spends {spent_s / (fetch_s + spent_s):.0%} of its time being collated and sent.",
        fix,
        code,
        gain=None if then_s is None else gain_of(measured.pipeline_s, (batch.carry_s - then_s) / batch.size),
        evidence=f"Collating a batch of {batch.size} takes {shown(batch.collate_s)}, sending it {shown(batch.sent_s)}, "
        f"and making its samples {shown(fetch_s)}. {cause}. Copying their arrays takes {shown(batch.copy_s)}",
        margin=spent_s / limit_s,  # noise changes both in the same direction, unlike _CARRYING_S
    )


def _floats(measured: Measured, samples: Samples, batch: Batch) -> Iterator[Finding]:
    for field in batch.floats:
        if field.sample_bytes < _LARGE_FLOATS:
            continue
        what = "multiples of 1/255" if field.is_scaled else "whole numbers from 0 to 255"
        width = np.dtype(field.dtype).itemsize
        saved_s = min(field.convert_s, _CONVERTING * samples.usual_s)
        if field.carry_s is not None:
            saved_s += max(0.0, batch.carry_s - field.carry_s) / batch.size
        moved = f"{field_in('batch', field.name)}.to(device, non_blocking=True).{'float' if width == 4 else 'double'}()"
        yield Finding(
            "floats",
            f"Samples hold {field.dtype} values that fit into bytes.",
            "Return uint8 from the dataset, and convert on the device, in the training loop.",
            f"{field_in('batch', field.name)} = {moved}{'.div_(255)' if field.is_scaled else ''}",
            gain=gain_of(measured.pipeline_s, saved_s),
            evidence=f"All values of {field.name} are {what}: {bytes_text(field.sample_bytes)} a sample where "
            f"{bytes_text(field.sample_bytes / width)} would do",
        )


def _padding(measured: Measured, samples: Samples) -> Iterator[Finding]:
    size = 32 if measured.batch is None else measured.batch.size
    lengths = np.array(samples.lengths)
    count = len(lengths) // size * size
    if size < 2 or len(lengths) < _FEW_LENGTHS or not count:
        return
    # Samples come in random order, as in shuffled batches.
    padded = lengths[:count].reshape(-1, size).max(axis=1).sum() * size
    bucketed = np.sort(lengths[:count]).reshape(-1, size).max(axis=1).sum() * size
    waste, left = (1 - lengths[:count].sum() / whole for whole in (padded, bucketed))
    if waste < _PADDED or padded < 1.1 * bucketed:
        return
    if measured.batch is not None and _is_not_padded(measured.batch, samples):
        return
    field = field_in("dataset[index]", samples.length_field)
    collate = ", collate_fn=feedline.collate.pad(lengths=False)" if measured.loader is None else ""
    yield Finding(
        "padding",
        f"{waste:.0%} of a batch is padding.",
        "Make batches from samples of similar length, instead of using batch_size and shuffle.",
        f"lengths = [len({field}) for index in range(len(dataset))]  # once: store them\n"
        f"batches = feedline.samplers.LengthBucketBatchSampler(lengths, {size})\n"
        f"DataLoader(dataset, batch_sampler=batches{collate})",
        gain=round(float(padded / bucketed), 2),
        evidence=f"Samples have {lengths.min()} to {lengths.max()} elements. In batches of {size} samples of similar "
        f"length, {left:.0%} would be padding",
    )


def _is_not_padded(batch: Batch, samples: Samples) -> bool:
    """True if the arrays of a batch hold no more than its samples do, as those of lists of samples."""
    return batch.bytes - batch.object_bytes <= batch.size * samples.sample_bytes
