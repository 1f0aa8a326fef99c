"""Deferred fields of samples, such as images: where their remaining steps run; and the targets that batches go to.

If you read a sample yourself, the dataset returns finished images. In a worker that uses feedline's own collate
function, the dataset only crops and resizes an image and defers the other steps (flip, normalise, change the layout).
The collate function runs these steps while it writes the image into its row of the batch, or the device runs them after
the batch has arrived. If the device can decode, the dataset returns the encoded file.

The core knows only these contracts; `feedline.images` implements them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from feedline.abc.source import Selection


class DeferredField(ABC):
    """A field of one sample that still has to be finished. Default collate functions call these class methods."""

    __slots__ = ()

    # Any: the fields of one batch, which should all be of this class; the batch has any structure.
    @classmethod
    @abstractmethod
    def collate_numpy(cls, items: Sequence[Any], where: str) -> object:
        """Return the field of a batch as a NumPy array, or as a `DeferredBatch`. Raises CollateError.

        Messages name the field by `where`, such as " in field 'image'".
        """

    @classmethod
    @abstractmethod
    def collate_torch(cls, items: Sequence[Any]) -> object:
        """Return the field of a batch as a tensor, or as a `DeferredBatch`. Raises the errors of `collate_numpy`."""


@dataclass(slots=True)
class Sources:
    """Memory that must not change until the device has read it."""

    held: list[Any]
    """Keeps objects alive."""
    addresses: list[int]
    """Addresses of tensors in slots."""


class DeferredBatch(ABC):
    """A field of a batch that the device finishes."""

    __slots__ = ()

    @property
    @abstractmethod
    def is_encoded(self) -> bool:
        """True if the device has to decode files, which keeps a CPU thread busy."""

    # Any: a torch device and a tensor; this folder does not import torch.
    @abstractmethod
    def finish_on(self, device: Any, sources: Sources) -> object:
        """Return the finished tensor, made on the device's current stream.

        Add the memory that the stream reads to `sources`.
        """


# Any: a dataset is any suitable object.
def hands_on_images(dataset: Any) -> bool:
    """True if a dataset's images reach the collate function exactly as their transform returned them.

    Only then may steps be deferred: user code in between expects arrays. Sources have an attribute of this name; a
    selection of their samples passes them on unchanged.
    """
    torchs = type(dataset).__name__ if type(dataset).__module__ == "torch.utils.data.dataset" else None
    if isinstance(dataset, Selection) or torchs == "Subset":
        return hands_on_images(dataset.dataset)
    if torchs == "ConcatDataset":
        return all(map(hands_on_images, dataset.datasets))
    return bool(getattr(dataset, "hands_on_images", False))


class Target(ABC):
    """Prepares batches for the training loop and delivers them."""

    ahead: int = 2
    """Maximum number of batches prepared before the training loop requests them."""
    threads: int = 0
    """Threads that call `begin`; 0 if the training loop calls it, because it costs almost nothing.

    May increase after a batch for which it was expensive.
    """

    # Any: batches of any structure, and the return value of `begin`.
    @abstractmethod
    def begin(self, batch: Any) -> object:
        """Start preparing a batch, without waiting for the device; returns what `deliver` needs."""

    @abstractmethod
    def deliver(self, begun: Any) -> object:
        """Return the batch, on the training loop's thread, without waiting for the device."""

    def close(self) -> None:  # noqa: B027  most targets have nothing to let go of
        """Stop: `begin` is not called any more."""
