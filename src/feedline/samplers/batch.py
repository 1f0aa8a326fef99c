"""Batches cut from the indices of a sampler.

`BatchSampler(sampler, ...)` creates one of two kinds of object, as `pathlib.Path(...)` does. Around one of feedline's
samplers it is a `CutBatches`, which computes batches by number. Around anything else it can only consume that sampler's
iterator, as torch's BatchSampler does, and it is not a `feedline.abc.BatchSampler`. A subclass is always of the second
kind, since its `__iter__` may do anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from feedline import abc
from feedline.abc.sampler import IndexArray
from feedline.errors import BadOption
from feedline.samplers.steps import Steps
from feedline.samplers.taken import taken_each
from feedline.samplers.torch_bases import with_torch_base
from feedline.system.options import checked_count
from feedline.system.ranks import Share
from feedline.types import Key


@with_torch_base("BatchSampler")
class BatchSampler(Iterable[list[Any]]):
    """Yields the indices of a sampler in batches.

    Args:
        sampler: Any iterable of indices. With a `feedline.abc.Sampler`, any batch can be made without those before it.
        batch_size: Indices in a batch.
        drop_last: Leave out a last batch that is smaller.

    Example:
        >>> list(BatchSampler(range(5), 2, False))
        [[0, 1], [2, 3], [4]]
    """

    # Any: the arguments of __init__; there are none when pickle creates the object.
    def __new__(cls, sampler: Iterable[object] | None = None, *arguments: Any, **options: Any) -> BatchSampler:
        if cls is BatchSampler and isinstance(sampler, abc.Sampler):
            return object.__new__(CutBatches)
        if cls is CutBatches and sampler is not None and not isinstance(sampler, abc.Sampler):
            return BatchSampler(sampler, *arguments, **options)  # a framework rebuilds it around another sampler
        return object.__new__(cls)

    def __init__(self, sampler: Iterable[object], batch_size: int, drop_last: bool) -> None:
        if not isinstance(drop_last, bool):
            raise BadOption(f"drop_last={drop_last!r} is not a boolean.")
        self.sampler: Any = sampler
        self.batch_size = checked_count("batch_size", batch_size)
        self.drop_last = drop_last

    def cut_from(self) -> tuple[abc.Sampler, int, bool] | None:
        """Return (sampler, batch size, drop_last) if batches can be made by number; None if only one after another."""
        return None

    def __iter__(self) -> Iterator[list[Any]]:
        indices = iter(self.sampler)
        while batch := taken_each(islice(indices, self.batch_size)):
            if len(batch) < self.batch_size and self.drop_last:
                return
            yield batch

    def __len__(self) -> int:
        indices = len(self.sampler)
        return indices // self.batch_size if self.drop_last else -(-indices // self.batch_size)

    def __repr__(self) -> str:
        return f"BatchSampler({self.sampler!r}, batch_size={self.batch_size}, drop_last={self.drop_last})"


# Any: stands for a plain attribute of the contract.
def _of_the_sampler(name: str) -> Any:
    return property(lambda self: getattr(self.sampler, name), lambda self, value: setattr(self.sampler, name, value))


class CutBatches(BatchSampler, abc.BatchSampler):
    """The batches of one of feedline's samplers, with the sampler's seed and epoch."""

    sampler: abc.Sampler
    seed = _of_the_sampler("seed")
    generator = _of_the_sampler("generator")
    epoch = _of_the_sampler("epoch")
    epoch_was_set = _of_the_sampler("epoch_was_set")
    __len__ = abc.BatchSampler.__len__
    __iter__ = abc.BatchSampler.__iter__

    def size(self) -> int | None:
        return self._steps().count

    def _steps(self) -> Steps:
        share = self.sampler.share or Share()
        return Steps(self.sampler.whole().size(), self.batch_size, share, drop_last=self.drop_last)

    def batch(self, number: int, key: Key) -> IndexArray:
        whole, places = self.sampler.whole(), self._steps().own(number)
        size = whole.size()
        return whole.at(places if size is None else places % max(size, 1), key)

    def cut_from(self) -> tuple[abc.Sampler, int, bool]:
        return self.sampler, self.batch_size, self.drop_last

    def draw_seed(self) -> int:
        return self.sampler.draw_seed()

    def begin(self) -> Key:
        return self.sampler.begin()

    def describe(self) -> dict[str, object]:
        # Without the number of batches, which depends on the number of ranks and follows from the rest.
        return {
            "kind": "BatchSampler",
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "sampler": self.sampler.describe(),
        }
