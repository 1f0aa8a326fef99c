"""Where the images of the current thread are finished: by the dataset, at collation, or on the device.

A dataset that you index yourself returns finished images. In a worker whose batches feedline collates, the dataset
crops and resizes an image. The remaining steps (flip, normalise, change the layout) are done when the image is written
into its row of the batch, or on the batch's device. If the device decodes images, the worker passes on the file itself.
"""

from __future__ import annotations

import enum
import threading
from typing import Any

from feedline.abc.selection import Selection


class Placement(enum.Enum):
    """Where the remaining steps of an image are done."""

    DATASET = "dataset"
    """In the dataset: it returns finished images, as arrays."""
    COLLATE = "collate"
    """In the collate function: the dataset returns `DeferredImage` objects with pixels."""
    DEVICE = "device"
    """On the device: batches hold `DeferredImages` with pixels, one byte per value."""
    DECODE = "decode"
    """On the device, which also decodes: batches hold `DeferredImages` with encoded files."""


class _Current(threading.local):
    placement = Placement.DATASET


_current = _Current()


def placement() -> Placement:
    """Return where the images of this thread are finished."""
    return _current.placement


def place(placement: Placement) -> Placement:
    """Set where the images of this thread are finished, and return the previous setting."""
    before, _current.placement = _current.placement, placement
    return before


# Any: any object that serves as a dataset.
def hands_on_images(dataset: Any) -> bool:
    """True if the collate function receives a dataset's images exactly as their transform returned them.

    Only then may images stay unfinished: user code in between expects arrays. Sources declare this with an attribute of
    the same name; a selection of their samples does not change them.
    """
    torchs = type(dataset).__name__ if type(dataset).__module__ == "torch.utils.data.dataset" else None
    if isinstance(dataset, Selection) or torchs == "Subset":
        return hands_on_images(dataset.dataset)
    if torchs == "ConcatDataset":
        return all(map(hands_on_images, dataset.datasets))
    return bool(getattr(dataset, "hands_on_images", False))
