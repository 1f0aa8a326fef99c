"""What the training loop waited for: the time in `next()`, divided by what was happening to its batch.

A batch passes a chain of moments: its task is assigned to a worker, started, fetched, collated and finished; the batch
reaches the training process, then the device, and `next()` returns it. The part of the wait between two moments has one
cause. Moments before the wait, or out of order because two processes read different clocks, yield parts of length 0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

CAUSES = (
    "start",
    "slot",
    "queue",
    "fetch",
    "transform",
    "collate",
    "write",
    "transfer",
    "order",
    "device",
    "deliver",
)
"""In the order in which a batch passes them."""

Columns = Mapping[str, NDArray[np.int64]]
"""Measurements of some batches by column; see `feedline.insight.batch_rows.COLUMNS`."""


def causes_of(columns: Columns, *, in_order: bool = True) -> dict[str, NDArray[np.int64]]:
    """Return how long the training loop waited for each batch, by cause, in nanoseconds.

    Args:
        columns: measurements of the batches.
        in_order: False if batches are delivered as they are finished, so that a late one does not hold up others.

    Example:
        >>> from feedline.insight.batch_rows import columns_of, row
        >>> asked = row(worker=0, given=0, began=10, fetch=50, finished=60, came=70, asked=40, got=75)
        >>> {cause: int(waited[0]) for cause, waited in causes_of(columns_of([asked])).items() if waited[0]}
        {'fetch': 20, 'transfer': 10, 'deliver': 5}
    """
    asked = columns["asked"]
    got = np.maximum(columns["got"], asked)
    fetched = columns["began"] + columns["fetch"]
    came = columns["came"]
    chain = [columns["given"], columns["began"], fetched, fetched + columns["collate"], columns["finished"], came]
    moments = np.clip(np.maximum.accumulate(np.stack(chain), axis=0), asked, got)
    came = moments[-1]
    starting, inline = columns["first"] > 0, columns["worker"] < 0
    # A free slot would have let the task start earlier. Without in_order, a later batch would have been delivered.
    held = (columns["held"] > 0) & ~inline
    passed = (columns["overtaken"] != 0) & ~held & ~starting & ~inline & in_order
    passed_at = np.where(passed, np.clip(columns["overtaken"], asked, came), came)
    order = came - passed_at
    moments = np.minimum(moments, passed_at)
    given, queue, fetch, collate, write, transfer = np.diff(moments, axis=0, prepend=asked[None])
    ready = np.clip(columns["came"] + columns["device"], came, got)
    device, deliver = ready - came, got - ready
    nothing = np.zeros_like(asked)

    queue = queue + given
    start, queue = np.where(starting, queue, nothing), np.where(starting, nothing, queue)
    # Without workers, the time before a batch is started is spent in the sampler and the loader itself.
    deliver, queue = deliver + np.where(inline, queue, nothing), np.where(inline, nothing, queue)

    share = np.clip(columns["transform"] / np.maximum(columns["fetch"], 1), 0.0, 1.0)
    transform = np.minimum((fetch * share).astype(np.int64), fetch)
    parts = [queue, fetch - transform, transform, collate, write, transfer]
    slot = np.where(held, sum(parts), nothing)
    parts = [np.where(held, nothing, part) for part in parts]
    return dict(zip(CAUSES, [start, slot, *parts, order, device, deliver], strict=True))
