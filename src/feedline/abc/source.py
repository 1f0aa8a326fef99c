"""Contracts of feedline's own datasets that loaders handle specially."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ColumnSource(ABC):
    """A map-style dataset that reads the samples of a batch together, as the columns of the batch.

    A loader with the default collate function asks for columns, and collates nothing. Only subclasses are treated so:
    a method of the same name on another dataset means nothing.
    """

    @abstractmethod
    def read_columns(self, indices: NDArray[np.int64]) -> Any:
        """Return the samples at `indices` as columns, in the form that a sample has: one, a tuple or a dict of them.

        A column is a NumPy array with a row per sample, of numbers in the machine's byte order, or a list of strings,
        bytes or None. `feedline.abc.memory.empty` makes an array that need not be copied again. Indices may be
        negative; IndexError if one is out of range.

        Returns None if columns cannot be had: samples are transformed, or differ in shape. The loader then asks for
        samples. Called for every batch, by every worker, in threads at the same time.
        """


class StreamSource(ABC):
    """An iterable dataset that leaves it to the loader to share out its samples over workers and ranks.

    Every worker iterates over the whole and keeps what is its own, so `__iter__` must yield the same samples in the
    same order everywhere. With `state_dict` and `load_state_dict`, on the source or on its iterator, it is resumed
    without being read again. If its iterator has a method `skip(count)`, which goes on by so many samples and returns
    how many there were, the batches of other workers are not read.
    """

    draws_nothing: bool = False
    """True if making a sample draws from no generator of the process, so that loaders need not seed these for it."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of an epoch."""


class SplitSource(ABC):
    """An iterable dataset that splits itself over workers and ranks, such as by the shards that each of them reads.

    Loaders tell the copy of every worker which one it has got, and do not split what it yields a second time. In
    torch's own loader it has to ask `get_worker_info()`. Which rank it is in it has to find out by itself.
    """

    @abstractmethod
    def set_worker(self, number: int, count: int) -> None:
        """Say which of how many workers this copy is in; called once, before `__iter__`. Not called without workers."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of this part of an epoch."""


class Reshardable(ABC):
    """A `SplitSource` that shares out anew what is left of an epoch, among another number of workers and ranks."""

    @abstractmethod
    def reshard(self, left: Mapping[int, Any], count: int, into: int, epoch: int) -> list[Any]:
        """Return the states of the iterators of `into` parts, which together go on with what `count` parts have left.

        The part of worker w of rank r has the number w * ranks + r. Nothing may come twice or be lost. Called in the
        training process of every rank, and has to return the same in all of them. No I/O.

        Args:
            left: what the iterators of parts have saved, by the numbers of the parts: None of one that has not begun.
                Parts that have ended are missing.
            count: how many parts there were.
            into: how many there are now.
            epoch: in which they are.

        Raises:
            BadState: the states do not fit.
        """


# Any: a dataset is whatever the user has.
def repeats_itself(dataset: Any) -> bool:
    """True for a stream of feedline's: its iterators draw from no random generator of the process."""
    return isinstance(dataset, (SplitSource, StreamSource))


class Acknowledged(ABC):
    """An iterable dataset that is told when the training loop has consumed a batch: that is, asks for the next one.

    What is not acknowledged comes again after a crash. Acknowledgements travel from the worker with the batch.
    """

    @abstractmethod
    def take_receipts(self) -> Any:
        """Return receipts for all samples since the last call. Called in the worker, after each batch; picklable."""

    @abstractmethod
    def put_back(self) -> None:
        """Yield the samples since the last `take_receipts` again, but for those that raised an `Exception`.

        Called in the worker, when a batch was not made: because of one of its samples, or of an interrupt.
        """

    @abstractmethod
    def acknowledge(self, receipts: Any) -> None:
        """Acknowledge the samples of a batch. Called in the training process.

        May block. Called again with the same receipts if it has raised an exception.
        """


class Repeatable(ABC):
    """An iterator of samples that can try again to make the one that raised an exception.

    After an exception `__next__` goes on with the next sample. If the policy of the loader is to try again, it says so.
    """

    has_broken_off: bool = False
    """True if no sample comes after the last exception: it is raised, whatever the policy of the loader is."""

    @abstractmethod
    def try_again(self) -> bool:
        """Let the next `__next__` make the sample that raised the last exception. Called right after it, if at all.

        Returns:
            False if that cannot be done, because the exception was not about one sample or the sample is gone: what
            comes next is another one, and the exception is treated as if it had been the last attempt.
        """


class EpochAware(ABC):
    """A dataset whose samples depend on the epoch, and which loaders tell by themselves when one begins.

    Other datasets with a `set_epoch` are told by `loader.set_epoch`, or by whoever calls it.
    """

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Say which epoch begins."""
