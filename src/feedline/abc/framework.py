"""What feedline needs to know about an array library, and what frameworks need to do with a loader."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from feedline.abc.memory import Reader, Writer
from feedline.types import CollateFunction, WorkerIdentity

Gather = Callable[[NDArray[np.int64]], Any]
"""Makes the batch of these indices in one vectorised step; None if they have to be fetched sample by sample.

It may have an attribute `quick`: a variant for small batches that needs no task context. It runs no user code, draws no
random numbers and writes into no slot. There, None also means a large batch, an index out of range, or a dataset
that has changed, for which the function itself raises `Stale`.
"""

Reducer = Callable[[Any, Writer], Any]
"""Reduces an array for pickling: takes the array and the slot writer, returns what `__reduce__` would."""


class Stale(Exception):
    """Raised by a function that reads a dataset if the dataset has changed since the function was made."""


class Calls:
    """The calls of dataset methods in this process, after which a dataset may have other columns."""

    last = object()
    """A new object after each call: what was made of the dataset before, or meanwhile, is out of date."""


class Framework(ABC):
    """An array library: how its arrays are made, sent and seeded. The defaults suit arrays that pickle sends well.

    Instances are stateless and picklable; the consumer and every worker use them.

    Example:
        >>> from feedline.frameworks.numpy import NumpyFramework
        >>> framework = NumpyFramework()
        >>> framework.name, framework.has_worker_info
        ('numpy', False)
    """

    name: str
    has_worker_info: bool = False
    """True if a dataset can query its worker id from the library."""

    @abstractmethod
    def gather_for(self, dataset: Any, collate: CollateFunction) -> Gather | None:
        """Return a vectorised fetch for `dataset`, or None if it has to be read sample by sample."""

    def bind_collate(self, collate: CollateFunction) -> CollateFunction:
        """Return `collate`, or a faster function with the same results.

        A collate function that serves every framework has a method `bound_to`, which takes this framework.
        """
        bind = getattr(collate, "bound_to", None)
        bound: CollateFunction = collate if bind is None else bind(self)
        return bound

    def is_default_collate(self, collate: CollateFunction) -> bool:
        """True for the library's own default collate function, which is known to draw no random numbers."""
        return bool(getattr(collate, "is_default", False))

    def reducers(self) -> dict[type, Reducer]:
        """Return how arrays of exact types are written into a slot, if not as pickle sends them: beside the header."""
        return {}

    def describe(self, batch: Any, writer: Writer) -> Any:
        """Place a batch of a common form in the slot and describe it in values that `marshal` can write.

        A shortcut that saves small batches the cost of a pickle. Returns None for a batch of any other form, which is
        then pickled; data placed by then stays valid.
        """
        return None

    def rebuild(self, description: Any, reader: Reader) -> object:
        """Recreate the batch that `describe` placed, over the memory that `reader` returns for each array."""
        raise NotImplementedError

    def makes_usual_arrays(self) -> bool:
        """False if arrays created now differ from the usual ones, as in a special mode of the library."""
        return True

    def copier(self, description: Any, view: NDArray[np.uint8]) -> Callable[[], object]:
        """Return a function that recreates the described batch from the contents of `view` at the time of the call.

        Each array gets its own memory. The function returns None if this batch needs `rebuild`.
        """
        raise NotImplementedError

    @abstractmethod
    def open_worker(self, worker: WorkerIdentity, base_seed: int, shared_seed: int | None) -> object:
        """Seed this worker and register it with the library; returns the dataset for the worker to use.

        Args:
            worker: the worker.
            base_seed: the seed to which all workers add their number.
            shared_seed: the seed that all workers and ranks share, for torch's data pipes.
        """

    def reset_worker(self, dataset: Any, shared_seed: int | None) -> object:
        """Start another epoch in a persistent worker; returns the dataset to use."""
        return dataset

    def worker_info_was_read(self) -> bool:
        """True if code in this worker has queried its worker id, as a dataset that splits itself does."""
        return False

    def reset_worker_info_read(self) -> None:  # noqa: B027  without worker ids there is nothing to record
        """Reset `worker_info_was_read`."""


# Any: a loader of a class that this folder does not know.
L = TypeVar("L", bound=Any)


class Rebuilding(Protocol):
    """Called by the files of `frameworks/`, on the thread of the training loop. Rebuilt loaders are copies."""

    kind: type[Any]
    """The class of these loaders, or their base."""

    def is_sharded(self, loader: Any) -> bool:
        """True if each rank already gets a share of the samples: by the loader, its dataset or its sampler."""

    def with_torch_parts(self, loader: L, other: Any) -> L:
        """Return the loader with the dataset, the samplers and the other arguments of `other`, a torch loader.

        The code that made `other` is responsible for the ranks.
        """

    def with_batch_size(self, loader: L, batch_size: int) -> L:
        """Return the loader with another batch size."""

    def own_share(self, loader: L) -> L:
        """Return this rank's share of the loader; the loader itself if there is one rank or it is split already."""

    def with_mesh(self, loader: L, mesh: Any, data_dims: tuple[str, ...]) -> L:
        """Return a loader that splits its samples, with its share by a device mesh; called on all ranks.

        Raises:
            BadOption: its sampler is distributed in another way.
        """

    def coming_epoch(self, loader: Any) -> int:
        """Return the number of the epoch that the next iteration starts or continues."""

    def end_epoch(self, loader: Any) -> None:
        """Mark the current epoch as over, although the training loop did not request a batch after the last one."""

    def skipped(self, loader: Any) -> int:
        """Return the number of batches that the next epoch skips."""

    def skip(self, loader: Any, count: int) -> None:
        """Skip the first batches of the next epoch."""
