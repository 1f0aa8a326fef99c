"""Batches that take longer than necessary to collate and to send: objects, floats, the collate function, padding."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from feedline.insight.stats import shown
from feedline.system.sizes import bytes_text
from feedline.tools.advise.finding import Finding, gain_of
from feedline.tools.measure.fields import field_in
from feedline.tools.measure.measured import Batch, Measured

_LARGE_FLOATS = 16 << 10
_CONVERTING = 0.95
"""Upper bound for the share of a sample's time spent on converting bytes to floats."""
_CARRYING = 0.3
"""Share of a batch's time spent on collating and sending it."""
_CARRYING_S = 5e-4
_COPIES = 4
"""Collating and sending may take this many times as long as copying the arrays."""
_FEW_LENGTHS = 64
_PADDED = 0.2
"""Share of a batch that is padding. All of these are guesses."""


def find(measured: Measured) -> list[Finding]:
    """Return the findings about batches."""
    batch = measured.batch
    if batch is None or batch.not_picklable is not None:
        return [*_padding(measured)]
    return [*_padding(measured), *_floats(measured, batch), *_carrying(measured, batch)]


def _carrying(measured: Measured, batch: Batch) -> Iterator[Finding]:
    """Report batches that take long to collate and to send, if it is known what takes so long."""
    fetch_s, spent_s = measured.samples.usual_s * batch.size, batch.collate_s + batch.sent_s
    limit_s = max(_CARRYING / (1 - _CARRYING) * fetch_s, _COPIES * batch.copy_s)
    faster = batch.faster
    if faster is None or spent_s < max(limit_s, _CARRYING_S):
        return
    saved_s = None if faster.carry_s is None else (batch.carry_s - faster.carry_s) / batch.size
    yield Finding(
        "slow-collate",
        f"A batch spends {spent_s / (fetch_s + spent_s):.0%} of its time being collated and sent.",
        faster.fix,
        faster.code,
        gain=None if saved_s is None else gain_of(measured.pipeline_s, saved_s),
        evidence=f"Collating a batch of {batch.size} takes {shown(batch.collate_s)}, sending it {shown(batch.sent_s)}, "
        f"and making its samples {shown(fetch_s)}. {faster.cause}. Copying their arrays takes {shown(batch.copy_s)}",
        margin=spent_s / limit_s,  # noise changes both in the same direction, unlike _CARRYING_S
    )


def _floats(measured: Measured, batch: Batch) -> Iterator[Finding]:
    for field in batch.floats:
        if field.sample_bytes < _LARGE_FLOATS:
            continue
        what = "multiples of 1/255" if field.is_scaled else "whole numbers from 0 to 255"
        width = np.dtype(field.dtype).itemsize
        convert_s = min(field.convert_s, _CONVERTING * measured.samples.usual_s)
        moved = f"{field_in('batch', field.name)}.to(device, non_blocking=True).{'float' if width == 4 else 'double'}()"
        yield Finding(
            "floats",
            f"Samples hold {field.dtype} values that fit into bytes.",
            "Return uint8 from the dataset, and convert on the device, in the training loop.",
            f"{field_in('batch', field.name)} = {moved}{'.div_(255)' if field.is_scaled else ''}",
            gain=gain_of(measured.pipeline_s, convert_s + field.carried_s),
            evidence=f"All values of {field.name} are {what}: {bytes_text(field.sample_bytes)} a sample where "
            f"{bytes_text(field.sample_bytes / width)} would do",
        )


def _padding(measured: Measured) -> Iterator[Finding]:
    samples, batch = measured.samples, measured.batch
    size, lengths = 32 if batch is None else batch.size, np.array(samples.lengths)
    count = len(lengths) // size * size
    if size < 2 or len(lengths) < _FEW_LENGTHS or not count:
        return
    # Samples come in random order, as in shuffled batches.
    padded = lengths[:count].reshape(-1, size).max(axis=1).sum() * size
    bucketed = np.sort(lengths[:count]).reshape(-1, size).max(axis=1).sum() * size
    waste, left = (1 - lengths[:count].sum() / whole for whole in (padded, bucketed))
    if waste < _PADDED or padded < 1.1 * bucketed:
        return
    if batch is not None and batch.bytes - batch.object_bytes <= batch.size * samples.sample_bytes:
        return  # its arrays hold no more than its samples do, as those of lists of samples
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
