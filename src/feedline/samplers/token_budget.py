"""Batches of as many samples as a number of tokens allows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from feedline.errors import BadOption
from feedline.samplers.buckets import BucketBatches, lengths_of
from feedline.samplers.seeded_batches import check_batch_size


class TokenBudgetBatchSampler(BucketBatches):
    """Yields batches of similar length with as many samples as a budget of tokens allows.

    The budget is for the padded batch: its number of samples times the longest of their lengths never exceeds
    `max_tokens`. So memory is bounded, and every batch is about the same work. Samples of similar length share a
    bucket; which of them meet in a batch, and in which order the batches come, is random. The number of batches is the
    same in every epoch. `padding()` tells what share of a batch is padding.

    Args:
        lengths: the length of each sample, as a list, array or tensor of numbers: tokens, frames, seconds.
        max_tokens: the budget of a batch, in the unit of the lengths.
        drop_last: leave out the last batch of the longest samples if it is smaller than the others of its bucket.
        shuffle: False for all samples in the order of their length.
        seed: fixes the orders of all epochs.
        generator: torch or NumPy generator to draw the seed of each epoch from instead.
        max_batch_size: the most samples of a batch, however short they are; None for no limit.
        multiple_of: what padded lengths are rounded up to, as in `feedline.collate.pad(multiple_of=...)`.

    Raises:
        BadOption: a sample is longer than the budget, or a length is negative or not a number.

    Example:
        >>> import numpy as np
        >>> lengths = np.random.default_rng(0).lognormal(5, 1, 10_000).astype(int)
        >>> sampler = TokenBudgetBatchSampler(lengths, 16_384, seed=1)
        >>> all(len(batch) * lengths[batch].max() <= 16_384 for batch in sampler)
        True
        >>> round(sampler.padding(), 2)
        0.06
    """

    # Any: an array or tensor has no common type with a list; a torch or NumPy generator.
    def __init__(
        self,
        lengths: Any,
        max_tokens: float,
        *,
        drop_last: bool = False,
        shuffle: bool = True,
        seed: int | None = None,
        generator: Any = None,
        max_batch_size: int | None = None,
        multiple_of: int = 1,
    ) -> None:
        self.max_tokens = budget = _check_budget(max_tokens)
        self.max_batch_size = None if max_batch_size is None else check_batch_size(max_batch_size, "max_batch_size")
        self.multiple_of = check_batch_size(multiple_of, "multiple_of")
        array = lengths_of(lengths)
        if self.multiple_of > 1:
            array = np.ceil(array / self.multiple_of).astype(np.int64) * self.multiple_of
        most = min(len(array), self.max_batch_size or len(array))
        longest = int(np.argmax(array))
        if array[longest] > budget:
            count = int((array > budget).sum())
            raise BadOption(
                f"lengths[{longest}]={array[longest]} is more than max_tokens={budget}, so that sample fits into no "
                f"batch; of {len(array)} samples {count} are too long. Raise max_tokens, cut these samples, or leave "
                "them out."
            )
        super().__init__(
            array,
            # Samples without any length count as 1: a batch of all of them would be as much work as any.
            lambda longest: max(1, int(min(budget // (longest or 1), most))),
            None,
            drop_last=drop_last,
            shuffle=shuffle,
            seed=seed,
            generator=generator,
        )

    def __repr__(self) -> str:
        most = "" if self.max_batch_size is None else f", max_batch_size={self.max_batch_size}"
        return self._form(f"max_tokens={self.max_tokens}{most}")


# Any: whatever the user gave.
def _check_budget(budget: Any) -> int | float:
    number = isinstance(budget, (int, float, np.integer, np.floating)) and not isinstance(budget, bool)
    if not number or not math.isfinite(budget) or budget <= 0:
        raise BadOption(f"max_tokens={budget!r} is not a positive number.")
    return int(budget) if isinstance(budget, (int, np.integer)) else float(budget)
