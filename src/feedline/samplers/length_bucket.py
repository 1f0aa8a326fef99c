"""Batches of a fixed size, of samples of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from feedline.errors import BadOption
from feedline.samplers.buckets import BucketBatches, lengths_of
from feedline.samplers.seeded_batches import check_batch_size


class LengthBucketBatchSampler(BucketBatches):
    """Yields batches of samples of similar length, so that little of a batch is padding.

    Samples of similar length share a bucket, and batches are made of the samples of one bucket. Which samples meet in a
    batch, and in which order the batches come, is random. `padding()` tells what share of a batch is padding.

    Args:
        lengths: the length of each sample, as a list, array or tensor of numbers.
        batch_size: samples in a batch.
        boundaries: the longest length of each bucket, in ascending order; one bucket more is for what is longer. Chosen
            if None: the lengths of a bucket are within 5 % of each other, unless that makes less than 4 batches.
        drop_last: leave out batches that are smaller. Of chosen buckets there is one at most, the last of the longest
            samples; of given boundaries, the last of each. Which samples are left out differs from epoch to epoch.
        shuffle: False for all samples in the order of their length.
        seed: fixes the orders of all epochs.
        generator: torch or NumPy generator to draw the seed of each epoch from instead.

    Raises:
        BadOption: a length is negative or not a number, or boundaries do not ascend.

    Example:
        >>> import numpy as np
        >>> lengths = np.arange(1000) % 100
        >>> sampler = LengthBucketBatchSampler(lengths, 10, boundaries=[25, 50, 75], seed=1)
        >>> sampler
        LengthBucketBatchSampler(1000 lengths, batch_size=10, seed=1: 4 buckets, 100 batches)
        >>> all(lengths[batch].max() <= lengths[batch].min() + 25 for batch in sampler)
        True
    """

    # Any: an array or tensor has no common type with a list; a torch or NumPy generator.
    def __init__(
        self,
        lengths: Any,
        batch_size: int,
        *,
        boundaries: Sequence[float] | None = None,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        generator: Any = None,
    ) -> None:
        self.batch_size = size = check_batch_size(batch_size)
        limits = None if boundaries is None else np.asarray(boundaries)
        if limits is not None and limits.size:
            if limits.ndim != 1 or limits.dtype.kind not in "iuf":
                raise BadOption(f"boundaries={boundaries!r} is not a list of lengths.")
            if not (np.diff(limits) > 0).all() or np.isnan(limits).any():
                raise BadOption(f"boundaries={boundaries!r} do not ascend: each is the longest length of a bucket.")
        super().__init__(
            lengths_of(lengths),
            lambda longest: size,
            limits,
            drop_last=drop_last,
            shuffle=shuffle,
            seed=seed,
            generator=generator,
        )

    def __repr__(self) -> str:
        return self._form(f"batch_size={self.batch_size}")
