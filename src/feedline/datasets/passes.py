"""Passes over iterable sources: which part of them is read here, which sample comes next, and where to go on.

A stream is the dataset; `iter()` begins a pass over it, or over the part of it that this worker of this rank reads. A
pass is a class, not a generator: after an exception it goes on with the next sample, or tries that one again.
"""

from __future__ import annotations

import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar

from feedline.abc.source import EpochAware, Repeatable, SplitSource
from feedline.datasets.source import Transform
from feedline.errors import BadState
from feedline.types.ranks import rank_if_known


def tell_torch(kind: type) -> None:
    """Make a class one of torch's iterable datasets, by which loaders know them, if the program uses torch."""
    data = sys.modules.get("torch.utils.data")
    if data is not None:
        data.IterableDataset.register(kind)


def torch_worker() -> tuple[int, int]:
    """Return which of how many workers of torch's loader this is; the only one if it is none."""
    data = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


Part = tuple[int, int]
"""Which of how many parts of a stream."""

T = TypeVar("T")


class Stream(ABC):
    """An iterable dataset. To torch it is an `IterableDataset`, if the program had imported torch when it was made."""

    def __init__(self) -> None:
        tell_torch(Stream)

    # Any: samples are of any kind.
    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Begin a pass."""

    def _part(self) -> Part:
        """Return which part of the stream is read here."""
        return 0, 1

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        tell_torch(Stream)


class PartedStream(Stream, SplitSource):
    """A stream of which every worker of every rank reads a part, in torch's own loader too."""

    _worker: Part | None = None
    _ranks: Part | None = None
    """Rank and number of ranks as they were where this was pickled: a worker may not know."""

    def set_worker(self, number: int, count: int) -> None:
        self._worker = number, count

    def _place(self) -> tuple[Part, Part]:
        """Return which of how many workers this is, and which of how many ranks."""
        return self._worker or torch_worker(), rank_if_known() or self._ranks or (0, 1)

    def _part(self) -> Part:
        (worker, workers), (rank, ranks) = self._place()
        return worker * ranks + rank, workers * ranks

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_ranks": rank_if_known() or self._ranks}


class Epochs(EpochAware):
    """A dataset that has another order in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch comes next: each has an order of its own. Loaders of feedline do so by themselves."""
        self.epoch = operator.index(epoch)


class Pass(Repeatable, Iterator[Any], Generic[T]):
    """One pass over a stream, or over a part of it.

    Subclasses say what comes next, such as a row or a place, and make a sample of it.
    """

    def __init__(self, part: Part = (0, 1), transform: Transform | None = None) -> None:
        self._part = part
        self._transform = transform
        self._failed: T | None = None
        """What the last exception was about."""
        self._again: T | None = None
        """What comes once more."""

    @abstractmethod
    def _take(self) -> T:
        """Return what comes next; StopIteration at the end. After any other exception it goes on behind it."""

    @abstractmethod
    def _make(self, item: T) -> Any:
        """Make a sample, before the transform; may be called again for the same item."""

    def __next__(self) -> Any:
        item, self._again, self._failed = self._again, None, None
        if item is None:
            item = self._take()
        try:
            sample = self._make(item)
            return sample if self._transform is None else self._transform(sample)
        except Exception:
            self._failed = item
            raise
        except BaseException:  # an interrupt: the sample is still to come
            self._again = item
            raise

    def try_again(self) -> bool:
        if self._failed is not None:
            self._again, self._failed = self._failed, None
        return self._again is not None


class ResumablePass(Pass[T]):
    """A pass that saves and restores where it is."""

    _name = ""
    """What it goes over, for errors."""
    _words: Mapping[str, str] = {"part": "part (worker of a rank, number of them)"}
    """Parts of a state, as errors call them."""

    @abstractmethod
    def _position(self) -> dict[str, Any]:
        """Return where the pass is: after the last sample that it gave."""

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Return what has to be the same for a state to fit."""

    @abstractmethod
    def _enter(self, state: dict[str, Any]) -> None:
        """Go on at a position."""

    def state_dict(self) -> dict[str, Any]:
        """Return where the pass is: a few plain values, whatever is held in memory."""
        return {**self._position(), **self._options(), "part": list(self._part)}

    # Any: a state may come from anywhere.
    def load_state_dict(self, state: Any) -> None:
        """Go on where a state was taken, with the next sample that would have come."""
        own = self.state_dict()
        if not isinstance(state, dict) or state.keys() != own.keys():
            raise BadState(
                f"This is not the state of a pass over {self._name}, as this version of feedline takes it: it was "
                "saved by another version, or with another dataset. Go on with those, or begin the epoch anew, "
                f"without the state. It is {state!r:.200}"
            )
        for name in (*self._options(), "part"):
            saved = state[name]
            if (list(saved) if isinstance(saved, tuple) else saved) != own[name]:  # of a tuple, JSON makes a list
                raise BadState(
                    f"The state was saved with {self._words.get(name, name)} {saved}, and now it is {own[name]}: "
                    f"the samples of {self._name} that are left cannot be told. Use the same data and options, and as "
                    "many workers and ranks as then."
                )
        self._again = self._failed = None
        self.has_broken_off = False
        self._enter(state)
