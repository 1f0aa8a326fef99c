"""Operations on a loader that frameworks need beyond its public methods."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from feedline.types import State

# Any: a loader of a class that this folder does not know.
L = TypeVar("L", bound=Any)


class TorchLoader(Protocol):
    """A loader with the attributes of torch's, and a state."""

    # Any: samplers of any class.
    batch_size: int | None
    sampler: Any
    batch_sampler: Any
    drop_last: bool

    def state_dict(self) -> State: ...


class Rebuilding(Protocol):
    """Called by the files of `frameworks/`, on the thread of the training loop. Rebuilt loaders are copies."""

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

    def coming_epoch(self, loader: Any) -> int:
        """Return the number of the epoch that the next iteration starts or continues."""

    def end_epoch(self, loader: Any) -> None:
        """Mark the current epoch as over, although the training loop did not request a batch after the last one."""

    def skipped(self, loader: Any) -> int:
        """Return the number of batches that the next epoch skips."""

    def skip(self, loader: Any, count: int) -> None:
        """Skip the first batches of the next epoch."""
