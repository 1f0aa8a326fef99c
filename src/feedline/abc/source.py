"""Contracts of datasets that loaders handle specially: arrays, streams, selections of others."""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


class IterableSource(ABC):
    """Base of feedline's iterable datasets. torch treats them as `IterableDataset`, although they are no subclasses."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Start reading."""


class Columnar(ABC):
    """A map-style dataset whose samples are rows of arrays.

    A loader with the default collate function makes a batch in one vectorised step per array, without reading single
    samples. This applies only to subclasses: a method of the same name on another dataset has no effect.

    Example:
        >>> import numpy as np
        >>> from feedline import Loader
        >>> from feedline.abc import Columnar
        >>> class Points(Columnar):
        ...     rows = np.arange(6).reshape(3, 2)
        ...     def __len__(self):
        ...         return len(self.rows)
        ...     def __getitem__(self, index):
        ...         return self.rows[index]
        ...     def columns(self):
        ...         return self.rows
        >>> [batch.tolist() for batch in Loader(Points(), 2)]
        [[[0, 1], [2, 3]], [[4, 5]]]
    """

    @abstractmethod
    def columns(self) -> Any:
        """Return the arrays: one, a tuple or a dict of them, each as long as the dataset.

        Sample i is row i of each, in the same form. Return None if that does not hold because samples are transformed.
        Called once per worker, and again after each call of a method of the dataset (`broadcast`).
        """

    def row_check(self) -> Callable[[NDArray[np.int64]], None] | None:
        """Return a function that the loader calls with the row numbers it is about to read.

        The function raises an exception if one of these rows is damaged. Return None if there is nothing to check.
        Called after `columns`.
        """
        return None


class ColumnSource(ABC):
    """A map-style dataset that reads the samples of a batch together, as the columns of the batch.

    A loader with the default collate function requests columns and does not collate. This applies only to subclasses: a
    method of the same name on another dataset has no effect.

    Example:
        >>> from feedline import Loader
        >>> from feedline.abc import ColumnSource
        >>> class Squares(ColumnSource):
        ...     def __len__(self):
        ...         return 4
        ...     def __getitem__(self, index):
        ...         return index**2
        ...     def read_columns(self, indices):
        ...         return indices**2  # a whole batch in one step
        >>> [batch.tolist() for batch in Loader(Squares(), 2)]
        [[0, 1], [4, 9]]
    """

    @abstractmethod
    def read_columns(self, indices: NDArray[np.int64]) -> object:
        """Return the samples at `indices` as columns, in the form of a sample: one column, a tuple or a dict of them.

        A column is a NumPy array with a row per sample, of numbers in the machine's byte order, or a list of strings,
        bytes or None. `feedline.abc.memory.empty` creates an array that need not be copied again. Indices may be
        negative; raise IndexError if one is out of range.

        Return None if columns are not available: samples are transformed, or differ in shape. The loader then reads
        single samples. Called for every batch, by every worker, from several threads at once.
        """


class AheadSource(ABC):
    """A map-style dataset that learns early which samples a worker will read next, and can fetch them meanwhile.

    A worker calls `fetch_ahead` with the indices of its next batches before it begins with the current one.
    `prefetch_factor` says how many batches a worker knows ahead.

    Example:
        >>> from feedline import Loader
        >>> from feedline.abc import AheadSource
        >>> class Far(AheadSource):
        ...     expected = []
        ...     def __len__(self):
        ...         return 6
        ...     def __getitem__(self, index):
        ...         return index
        ...     def fetch_ahead(self, indices):
        ...         self.expected.append(indices.tolist())
        >>> dataset = Far()
        >>> _ = list(Loader(dataset, 2, workers=1, engine="thread"))
        >>> sorted(dataset.expected)
        [[0, 1], [2, 3], [4, 5]]
    """

    fetches_ahead = True
    """False if there is nothing to gain: `fetch_ahead` is not called then."""

    @abstractmethod
    def fetch_ahead(self, indices: NDArray[np.int64]) -> None:
        """Begin to fetch samples that will be requested soon, without waiting for them.

        Called in the process that will request them, perhaps by another thread. They may never be requested: another
        worker may take over, or the epoch may end early.
        """


class Derived(ABC):
    """A map-style dataset whose samples come from other datasets, so that messages can name the original index.

    Example:
        >>> from feedline.abc import Derived
        >>> class Reversed(Derived):
        ...     def __init__(self, dataset):
        ...         self.dataset = dataset
        ...     def __len__(self):
        ...         return len(self.dataset)
        ...     def __getitem__(self, index):
        ...         return self.dataset[len(self) - 1 - index]
        ...     def origin(self, index):
        ...         return self.dataset, len(self) - 1 - index
        >>> Reversed([10, 20, 30]).origin(0)
        ([10, 20, 30], 2)
    """

    # Any: a dataset is any suitable object.
    @abstractmethod
    def origin(self, index: Any) -> tuple[object, object]:
        """Return the origin of a sample: the attribute `dataset`, or one of `datasets`, and the index in it.

        Called when a sample has failed; may raise any exception if there is no such sample.
        """


class Selection(Derived):
    """A map-style dataset whose sample i is sample `indices[i]` of another one.

    If a loader can read the other dataset in one vectorised step, it reads this one in the same way. This applies only
    to subclasses, and only if their samples are as described here.

    Example:
        >>> import numpy as np
        >>> from feedline.abc import Selection
        >>> class Part(Selection):
        ...     def __init__(self, dataset, indices):
        ...         self.dataset, self.indices = dataset, np.asarray(indices)
        ...     def __len__(self):
        ...         return len(self.indices)
        ...     def __getitem__(self, index):
        ...         return self.dataset[self.indices[index]]
        >>> Part([10, 20, 30], [2, 0]).origin(0)
        ([10, 20, 30], 2)
    """

    # Any: a dataset is any suitable object.
    dataset: Any
    """The other dataset."""
    indices: NDArray[np.int64]
    """Indices of the selected samples, in order."""

    def origin(self, index: Any) -> tuple[Any, Any]:
        return self.dataset, int(self.indices[index])


class StreamSource(IterableSource):
    """An iterable dataset whose samples the loader shards over workers and ranks.

    Every worker iterates over the whole dataset and keeps its own samples, so `__iter__` must yield the same samples in
    the same order everywhere. A source with `state_dict` and `load_state_dict`, on itself or on its iterator, resumes
    without reading everything again. If its iterator has a method `skip(count)`, which skips that many samples and
    returns how many there were, a worker does not read the batches of other workers. A method `take(count)`, which
    returns a list of the next samples, at least one and at most `count`, and none at the end, saves a call per sample;
    a sample that fails raises in a call of its own, after the samples before it were returned. A method
    `columns(offsets)`, beside `skip`, saves the samples: it returns those at some offsets from the next sample as
    `ColumnSource.read_columns` does, without moving, and raises IndexError if there are fewer.

    Example:
        >>> from feedline import Loader
        >>> from feedline.abc import StreamSource
        >>> class Lines(StreamSource):
        ...     def __iter__(self):
        ...         yield from range(6)
        >>> [batch.tolist() for batch in Loader(Lines(), 2, workers=2, engine="thread")]
        [[0, 1], [2, 3], [4, 5]]
    """

    draws_nothing: bool = False
    """True if making a sample draws from no process-wide generator, so loaders need not seed these generators."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of an epoch."""


class ShardedSource(IterableSource):
    """An iterable dataset that splits itself over workers and ranks, for example by assigning shards to them.

    Loaders call `set_worker` on every worker's copy, and do not split its samples a second time. In torch's own loader
    the dataset has to call `get_worker_info()`. It has to determine its rank by itself. A loader with `mesh=`, or with
    `rank=` and `world_size=`, passes the data rank: it needs a dataset with a method `set_ranks(rank, count)`, calls
    that once when the loader is made, and raises an error if there is none.

    Example:
        >>> from feedline import Loader
        >>> from feedline.abc import ShardedSource
        >>> class Shards(ShardedSource):
        ...     number, count = 0, 1
        ...     def set_worker(self, number, count):
        ...         self.number, self.count = number, count
        ...     def __iter__(self):
        ...         yield from range(self.number, 6, self.count)
        >>> [batch.tolist() for batch in Loader(Shards(), 3)]
        [[0, 1, 2], [3, 4, 5]]
    """

    @abstractmethod
    def set_worker(self, number: int, count: int) -> None:
        """Set the worker number of this copy and the worker count; called once, before `__iter__`, if there are any."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Yield the samples of this part of an epoch."""


class Reshardable(ABC):
    """A `ShardedSource` that can redistribute the rest of an epoch over another number of workers and ranks.

    Example:
        >>> from feedline.abc import Reshardable
        >>> class Lines(Reshardable):  # the state of an iterator is the list of the lines that it has left
        ...     def reshard(self, left, count, into, epoch):
        ...         lines = sorted(line for lines in left.values() for line in lines)
        ...         return [lines[part::into] for part in range(into)]
        >>> Lines().reshard({0: [4, 6], 1: [5]}, count=2, into=3, epoch=0)
        [[4], [5], [6]]
    """

    @abstractmethod
    def reshard(self, left: Mapping[int, Any], count: int, into: int, epoch: int) -> list[Any]:
        """Return the iterator states of `into` parts, which together continue with what `count` parts have left.

        The part of worker w of rank r has the number w * ranks + r. No sample may be repeated or lost. Called in the
        training process of every rank; must return the same states in all of them. No I/O.

        Args:
            left: the saved iterator states, by part number: None for a part that has not started. Parts that have ended
                are missing.
            count: the previous number of parts.
            into: the new number of parts.
            epoch: the current epoch.

        Raises:
            BadState: the states do not fit.
        """


# object: a user's dataset.
def copy_for_worker(dataset: T) -> T:
    """Return a shallow copy for a worker that is a thread; the dataset itself if it cannot be copied.

    Attributes that are iterable datasets of feedline, such as pipes, are copied in the same way. Wrappers of other
    iterable datasets define `__copy__`.
    """
    try:
        own = copy.copy(dataset)
    except Exception:
        return dataset  # shared, as documented for threads
    if own is dataset:  # its own `__copy__` shares it
        return dataset
    for name, value in getattr(own, "__dict__", {}).items():
        if isinstance(value, IterableSource) and value is getattr(dataset, name, None):
            own.__dict__[name] = copy_for_worker(value)
    return own


# object: a user's dataset.
def repeats_itself(dataset: object) -> bool:
    """True for a feedline stream: its iterators draw from no process-wide random generator."""
    return isinstance(dataset, (ShardedSource, StreamSource))


class Acknowledged(ABC):
    """An iterable dataset that is notified when the training loop has consumed a batch, that is, requests the next one.

    Samples that are not acknowledged come again after a crash. Receipts travel from the worker with the batch.
    """

    @abstractmethod
    def take_receipts(self) -> object:
        """Return receipts for all samples since the last call. Called in the worker, after each batch; picklable."""

    @abstractmethod
    def put_back(self) -> None:
        """Yield the samples since the last `take_receipts` again, except those that raised an `Exception`.

        Called in the worker when a batch was not completed, because of one of its samples or an interrupt.
        """

    @abstractmethod
    def acknowledge(self, receipts: Any) -> None:
        """Acknowledge the samples of a batch. Called in the training process.

        May block. Called again with the same receipts if it has raised an exception.
        """


class Repeatable(ABC):
    """A sample iterator that can retry the sample that raised an exception.

    After an exception, `__next__` continues with the next sample. If the loader's policy is to retry, it calls
    `try_again`; iterators of other classes are not asked again.

    Example:
        >>> from feedline.abc import Repeatable
        >>> class Lines(Repeatable):
        ...     place = 0
        ...     def __next__(self):
        ...         self.place += 1
        ...         return self.place
        ...     def try_again(self):
        ...         self.place -= 1
        ...         return True
        >>> lines = Lines()
        >>> next(lines), lines.try_again(), next(lines)
        (1, True, 1)
    """

    has_broken_off: bool = False
    """True if no sample follows the last exception: it is raised regardless of the loader's policy."""

    @abstractmethod
    def try_again(self) -> bool:
        """Make the next `__next__` retry the sample that raised the last exception. Called right after it, if at all.

        Returns:
            False if that is impossible, because the exception was not about one sample or the sample is gone: the next
            sample is another one, and the exception is handled as if it had been the last attempt.
        """


class EpochAware(ABC):
    """A dataset whose samples depend on the epoch; loaders call its `set_epoch` when an epoch starts.

    For other datasets with a `set_epoch`, `loader.set_epoch` calls it, or the user does.

    Example:
        >>> from feedline import Loader
        >>> from feedline.abc import EpochAware
        >>> class Curriculum(list, EpochAware):
        ...     def set_epoch(self, epoch):
        ...         self[:] = [epoch, epoch]
        >>> loader = Loader(Curriculum([0, 0]), 2)
        >>> [batch.tolist() for _ in range(2) for batch in loader]
        [[0, 0], [1, 1]]
    """

    changes_with_epoch: bool = True
    """False if an index means the same sample in every epoch, so that it may stay in quarantine."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that starts."""


_MOST_LAYERS = 100
"""A bound in case of a circle."""


# Any: a user's dataset, and those inside it.
def layers_of_dataset(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those inside it. Wrappers keep them as `dataset` or a list `datasets`, as torch's do."""
    found = [dataset]
    for layer in itertools.islice(found, _MOST_LAYERS):  # which grows meanwhile
        yield layer
        several = getattr(layer, "datasets", None)
        found += several if isinstance(several, (list, tuple)) else []
        found += [inside for inside in [getattr(layer, "dataset", None)] if inside is not None]


def changes_with_epoch(dataset: object) -> bool:
    """True if an index may mean another sample in another epoch: the dataset, or one inside it, has a `set_epoch`.

    Most wrappers have none themselves, and the user calls that of the dataset inside.
    """
    return any(
        layer.changes_with_epoch if isinstance(layer, EpochAware) else callable(getattr(layer, "set_epoch", None))
        for layer in layers_of_dataset(dataset)
    )
