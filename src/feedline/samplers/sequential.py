"""The order of the dataset. Every loader without a sampler has it, so nothing for random orders is imported here."""

from __future__ import annotations

from collections.abc import Sized

from feedline.abc.sampler import IndexArray, Sampler
from feedline.samplers.torch_bases import with_torch_base
from feedline.types import Key, State


@with_torch_base("SequentialSampler")
class SequentialSampler(Sampler):
    """Yields 0 to `len(data_source)` - 1 in that order.

    Example:
        >>> list(SequentialSampler("abc"))
        [0, 1, 2]
    """

    seed = 0  # nothing is drawn, so no generator is advanced

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def size(self) -> int:
        return len(self.data_source)

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        return places

    def describe(self) -> State:
        # Frameworks build loaders with a class in place of the dataset, and ask for their state, to unpickle others.
        has_length = hasattr(type(self.data_source), "__len__")
        return super().describe() if has_length else {"kind": type(self).__name__, "size": None}

    def __repr__(self) -> str:
        return f"SequentialSampler({self.size()} samples)"
