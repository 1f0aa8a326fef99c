"""Batches that take longer than necessary: pickled objects, floats, the collate function, padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedline.insight.stats import shown
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, gain_of
from feedline.tools.measure.measured import Batch, Measured, Samples, field_in

_SENDING = 0.1
"""Share of a sample's time spent on sending its objects."""
_SENDING_S = 1e-5
"""The same in seconds per sample; less goes unnoticed."""
_LARGE_FLOATS = 16 << 10
_CONVERTING = 0.95
"""Upper bound for the share of a sample's time spent on converting bytes to floats."""
_COLLATING = 0.3
"""Share of a batch's time spent on collating it."""
_COLLATING_S = 1e-3
_COPIES = 3
"""Collating may take this many times as long as copying the arrays."""
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
    if batch is None:
        return found
    if batch.not_picklable is not None:
        return [*found, *_unsendable(measured, batch)]
    objects = list(_objects(measured, batch))
    return [*found, *_floats(measured, samples, batch), *(objects or _collate(measured, samples, batch))]


def _carried_less(measured: Measured, batch: Batch, then_s: float | None, guessed_s: float) -> float:
    """Return the time saved per sample if carrying its batch takes `then_s`; `guessed_s` if that was not measured."""
    if measured.carry_s is None or then_s is None:
        return guessed_s
    return max(0.0, measured.carry_s - then_s) / batch.size


def _unsendable(measured: Measured, batch: Batch) -> Iterator[Finding]:
    if measured.engine not in ("thread", "inline"):
        yield Finding(
            "unsendable-batch",
            "A batch cannot be pickled, so no worker process can send it.",
            "Use threads, which send nothing; or return arrays, tensors, numbers and texts from the collate function.",
            'DataLoader(dataset, engine="thread")',
            is_serious=True,
            evidence=str(batch.not_picklable),
        )


_AS_ARRAYS = {
    "numbers": ("Return an array: it is written into shared memory as it is.", "{field} = np.asarray({field})"),
    "texts": (
        "Join the texts of a sample into one, and split it where the texts are used.",
        '{field} = "\\0".join({field})\n# in the training loop, for each text of the batch:\ntexts = text.split("\\0")',
    ),
    "": ("Return arrays or tensors: they are written into shared memory as they are.", None),
}
"""Fix and code, by `Batch.object_kind`."""


def _objects(measured: Measured, batch: Batch) -> Iterator[Finding]:
    """Report objects that are not arrays: every transport pickles them."""
    now_s = measured.pipeline_s
    sent_s = batch.arena_s / batch.size
    is_mostly_objects = bool(batch.objects) and 2 * batch.object_bytes > batch.bytes
    limit_s = max(_SENDING * now_s, _SENDING_S)
    if not is_mostly_objects or sent_s < limit_s:
        return
    as_pickle = f"{bytes_text(batch.pickle_bytes / batch.size)} in {shown(batch.pickle_s / batch.size)}"
    saved_s = (batch.write_s + batch.collate_s - batch.copy_s - batch.as_arrays_s) / batch.size
    saved_s = _carried_less(measured, batch, batch.object_carry_s, saved_s)
    fix, code = _AS_ARRAYS[batch.object_kind]
    yield Finding(
        "serialisation",
        "Samples are made of Python objects, which are slow to send.",
        fix,
        None if code is None else code.format(field=field_in("sample", batch.objects.partition(" ")[0])),
        gain=gain_of(now_s, saved_s),
        evidence=f"{bytes_text(batch.object_bytes / batch.size)} of a sample are objects, the largest {batch.objects}. "
        f"Pickling and unpickling them takes {shown(sent_s)} for a sample that occupies a worker for "
        f"{shown(now_s)}; torch's loader pickles the whole sample: {as_pickle}",
        margin=sent_s / limit_s,
    )


def _floats(measured: Measured, samples: Samples, batch: Batch) -> Iterator[Finding]:
    for field in batch.floats:
        if field.sample_bytes < _LARGE_FLOATS:
            continue
        what = "multiples of 1/255" if field.is_scaled else "whole numbers from 0 to 255"
        width = np.dtype(field.dtype).itemsize
        less = min(1.0, field.sample_bytes * batch.size / max(batch.bytes, 1)) * (1 - 1 / width)
        copied_s = batch.copy_s + (0.0 if measured.engine in ("inline", "thread") else batch.write_s)
        saved_s = _carried_less(measured, batch, field.carry_s, less * copied_s / batch.size)
        saved_s += min(field.convert_s, _CONVERTING * samples.usual_s)
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


def _collate(measured: Measured, samples: Samples, batch: Batch) -> Iterator[Finding]:
    fetch_s = samples.usual_s * batch.size
    limit_s = max(_COLLATING / (1 - _COLLATING) * fetch_s, _COPIES * batch.copy_s)
    is_long = batch.collate_s > max(limit_s, _COLLATING_S)
    if not is_long or not (batch.is_custom or batch.fields >= _MANY_FIELDS):
        return
    other, code, gain = batch.other, None, None
    if other is not None:
        saved_s = _carried_less(measured, batch, other.carry_s, (batch.collate_s - other.seconds) / batch.size)
        gain = gain_of(measured.pipeline_s, saved_s)
        code = f"{other.code}\nDataLoader(dataset, collate_fn=collate)" if other.code else "DataLoader(dataset)"
    if other is not None and not other.code:
        fix = "Leave out collate_fn: the default makes the same batches."
    elif batch.is_custom:
        fix = "Stack arrays in one call (np.stack, torch.stack) instead of value by value."
    else:
        fix = "Return fewer and larger fields: one array of many numbers instead of many fields of one."
    quicker = "" if other is None else f". The fix makes the same batch in {shown(other.seconds)}"
    yield Finding(
        "slow-collate",
        f"Collating a batch takes {batch.collate_s / (fetch_s + batch.collate_s):.0%} of its time.",
        fix,
        code,
        gain=gain,
        evidence=f"{batch.collate} takes {shown(batch.collate_s)} for a batch of {batch.size}, whose samples "
        f"take {shown(fetch_s)} to make. Copying their arrays takes {shown(batch.copy_s)}{quicker}",
        margin=batch.collate_s / limit_s,  # noise changes both in the same direction, unlike _COLLATING_S
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
