"""What batch samplers with a random order have in common: seed, generator, shuffling, the last batches."""

from __future__ import annotations

import operator
import sys
from typing import Any

import numpy as np

from feedline.abc.sampler import BatchSampler, Sampler
from feedline.errors import BadOption


class SeededBatches(BatchSampler):
    """Base of batch samplers that make their own order."""

    # Any: a torch or NumPy generator.
    def __init__(self, *, drop_last: bool, shuffle: bool, seed: int | None, generator: Any) -> None:
        for name, value in (("drop_last", drop_last), ("shuffle", shuffle)):
            if not isinstance(value, (bool, np.bool_)):
                raise BadOption(f"{name}={value!r} is not True or False.")
        if seed is not None and generator is not None:
            raise BadOption(
                f"seed={seed!r} and generator={generator!r} were both given: a seed fixes every epoch, a generator is "
                "drawn from for each. Drop one of them."
            )
        self.drop_last = bool(drop_last)
        self.shuffle = bool(shuffle)
        self.seed = None if seed is None else operator.index(seed)
        self.generator = generator

    def _options(self) -> str:
        """Say what differs from the defaults, for `__repr__`."""
        parts = []
        if self.drop_last:
            parts.append(", drop_last=True")
        if not self.shuffle:
            parts.append(", shuffle=False")
        if self.seed is not None:
            parts.append(f", seed={self.seed}")
        if self.generator is not None:
            parts.append(f", generator={self.generator!r}")
        return "".join(parts)

    def _check_number(self, number: int) -> None:
        size = self.size()
        if size is not None and not 0 <= number < size:
            raise IndexError(f"batch {number} is not among the {size} batches of an epoch, 0 to {size - 1}.")


# Any: what the user, or a framework, has given.
def refuse_sampler(name: str, value: Any) -> None:
    """Refuse a sampler in the place of lengths or labels, where frameworks put one to share batches out over ranks."""
    torch_data = sys.modules.get("torch.utils.data")
    if isinstance(value, Sampler) or (torch_data is not None and isinstance(value, torch_data.Sampler)):
        raise BadOption(
            f"{name} is a {type(value).__name__}: probably a framework wants to share batches out over ranks that way, "
            "which works for a plain BatchSampler only. Share them out before: give the loader "
            "batch_sampler=feedline.samplers.distribute(...) around this one, when the ranks are there; frameworks "
            "then leave it alone."
        )


def check_batch_size(batch_size: Any, name: str = "batch_size") -> int:
    """Return a number of samples as an int; refuse what is none."""
    if isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer)) or batch_size < 1:
        raise BadOption(f"{name}={batch_size!r} is not a positive integer.")
    return int(batch_size)
