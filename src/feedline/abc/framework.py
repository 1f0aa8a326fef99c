"""What feedline needs to know about an array library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feedline.abc.memory import Reader, Writer
from feedline.types import WorkerIdentity, WorkerSpec

Gather = Callable[[NDArray[np.int64]], Any]
"""Makes the batch of these indices in one vectorised step; None if these have to be asked for sample by sample.

It may have an attribute `quick`: another one, for small batches, which needs nothing of a task. It runs no code of the
user's, draws no random numbers and writes into no slot. None also means a large batch, or an index out of range.
"""

Reducer = Callable[[Any, Writer], Any]
"""Reduces an array for pickling: gets the array and the slot writer, returns what `__reduce__` would."""


class Framework(Protocol):
    """An array library: how its arrays are made, sent and seeded.

    Instances are stateless and picklable; they are used in the consumer and in every worker.
    """

    name: str
    can_be_asked: bool
    """True if a dataset can ask the library which worker it is in."""

    def gather_for(self, dataset: Any, collate: Callable[[Any], Any]) -> Gather | None:
        """Return a vectorised fetch for `dataset`, or None if it has to be asked sample by sample."""

    def bind_collate(self, collate: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return `collate`, or a faster function with the same results.

        A collate function that serves every framework has a method `bound_to`, which is given this one.
        """

    def is_default_collate(self, collate: Callable[[Any], Any]) -> bool:
        """True for the library's own default collate function, of which it is known that it draws no random numbers."""

    def reducers(self) -> dict[type, Reducer]:
        """Return how arrays of exact types are written into a slot."""

    def describe(self, batch: Any, writer: Writer) -> Any:
        """Place a batch of a usual form in the slot and describe it in what `marshal` can write.

        A short cut that spares small batches the cost of a pickle. Returns None for a batch of any other form, which
        is pickled; what was placed by then stays valid.
        """

    def rebuild(self, description: Any, reader: Reader) -> Any:
        """Make the batch that `describe` placed, over the memory that `reader` has for each array."""

    def makes_usual_arrays(self) -> bool:
        """False if arrays that are made now are others than at most times, as in a mode of the library."""

    def copier(self, description: Any, view: NDArray[np.uint8]) -> Callable[[], Any]:
        """Return a function that makes the batch that `describe` described, from what lies in `view` when it is called.

        Each array gets memory of its own. The function returns None if this batch has to be made by `rebuild`.
        """

    def open_worker(self, worker: WorkerIdentity, spec: WorkerSpec) -> Any:
        """Seed this worker and make it known to the library; returns the dataset the worker is to use."""

    def reset_worker(self, dataset: Any, spec: WorkerSpec, shared_seed: int | None) -> Any:
        """Begin another epoch in a worker that stays; returns the dataset to use."""

    def announce_worker(self, worker: WorkerIdentity) -> None:
        """Say which worker this process is from now on, if it is several in turn. `open_worker` was called for each."""

    def has_asked(self) -> bool:
        """True if the code of this worker has asked which worker it is in, as a dataset does that splits itself."""

    def forget_asking(self) -> None:
        """Let `has_asked` answer for what happens from now on."""
