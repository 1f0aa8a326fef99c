"""Samplers that can only be iterated: torch's, lists, a user's own.

To share one of their orders, every rank materialises all of it, under random generators that are seeded from seed and
epoch for that time. So all ranks get the same order, and the program's generators are not disturbed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sized
from contextlib import contextmanager
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from feedline.abc.sampler import BatchSampler, IndexArray, Ordered, Sampler
from feedline.errors import BadOption
from feedline.randomness.global_states import globals_kept, seed_globals
from feedline.randomness.keys import epoch_key
from feedline.samplers.taken import taken_each
from feedline.types import Key

if TYPE_CHECKING:
    from torch import Generator


class _Foreign(Ordered):
    """An iterable with a length. Any: it may be of any class."""

    seed: int | None = 0

    def __init__(self, foreign: Any) -> None:
        self.foreign = foreign

    def size(self) -> int:
        return len(self.foreign)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "foreign": type(self.foreign).__name__}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({_name(self.foreign)})"


class ForeignSampler(_Foreign, Sampler):
    """The order of any iterable of indices that has a length, one epoch at a time. An epoch takes 8 bytes per index.

    `set_epoch` of the iterable is called, if it has one. A torch `generator` of it, or of the sampler inside it, is
    seeded like the global ones while an epoch is made.
    """

    _last: tuple[Key, IndexArray] | None = None

    def at(self, places: IndexArray, key: Key) -> IndexArray:
        last = self._last
        if last is None or last[0] != key:
            last = self._last = (key, _as_indices(_one_epoch(self.foreign, key), self.foreign))
        return last[1][places]


class ForeignBatchSampler(_Foreign, BatchSampler):
    """The batches of any iterable of lists of indices that has a length, one epoch at a time, like `ForeignSampler`."""

    _last: tuple[Key, list[IndexArray]] | None = None

    def batch(self, number: int, key: Key) -> IndexArray:
        last = self._last
        if last is None or last[0] != key:
            batches = [_as_indices(batch, self.foreign) for batch in _one_epoch(self.foreign, key)]
            last = self._last = (key, batches)
        return last[1][number]


def yields_batches(foreign: Iterable[Any]) -> bool:
    """True if a sampler yields batches, judging by its first item; False if it yields nothing.

    torch's samplers are recognised by their classes, because they shuffle a whole dataset before the first item.
    """
    known = sys.modules.get("torch.utils.data.sampler")
    if known is not None and isinstance(foreign, known.BatchSampler):
        return True
    if known is not None and type(foreign).__module__ == known.__name__:
        return False
    with seeded_generators(foreign, Key(0, 0)):
        first = next(iter(foreign), 0)
    return np.ndim(first) > 0


@contextmanager
def seeded_generators(foreign: object, key: Key) -> Iterator[None]:
    """Seed every generator that a sampler may draw from, and restore them afterwards."""
    number = epoch_key(key.seed, key.epoch)
    own = [(generator, generator.get_state()) for generator in _own_generators(foreign, sys.modules.get("torch"))]
    with globals_kept():
        seed_globals(number)
        for generator, _ in own:
            generator.manual_seed(number >> 1)
        try:
            yield
        finally:
            for generator, state in own:
                generator.set_state(state)


def _own_generators(foreign: object, torch: ModuleType | None) -> Iterator[Generator]:
    while torch is not None and foreign is not None:
        generator = getattr(foreign, "generator", None)
        if isinstance(generator, torch.Generator):
            yield generator
        foreign = getattr(foreign, "sampler", None)


def _one_epoch(foreign: Any, key: Key) -> list[object]:
    expected = len(foreign)
    set_epoch = getattr(foreign, "set_epoch", None)
    if set_epoch is not None:
        set_epoch(key.epoch)
    with seeded_generators(foreign, key):
        found = taken_each(islice(foreign, expected + 1))
    if len(found) != expected:
        more = "more" if len(found) > expected else f"only {len(found)}"
        raise BadOption(
            f"{_name(foreign)} has a length of {expected} but yields {more}. Ranks divide an order by its length: make "
            "`__len__` return how many items `__iter__` yields."
        )
    return found


def _as_indices(found: object, foreign: Sized) -> IndexArray:
    array = np.asarray(found)
    if array.ndim == 1 and (array.dtype.kind in "iu" or len(array) == 0):
        return array.astype(np.int64)
    raise BadOption(f"{_name(foreign)} yields {str(found)[:80]}, and only integers can be distributed over ranks.")


def _name(foreign: Sized) -> str:
    return f"{type(foreign).__name__} of length {len(foreign)}"
