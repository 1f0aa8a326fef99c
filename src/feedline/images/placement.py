"""Where the images of the current thread are finished: by the dataset, when they are collated, or on the device.

A dataset that is asked for a sample by hand gives finished images. In a worker whose batches are collated by feedline
an image is cropped and resized by the dataset; the rest (flip, normalise, change the layout) is done when it is written
into its row of the batch, or on the device that the batch goes to. With a device that decodes, the file itself travels.
"""

from __future__ import annotations

import enum
import threading
from typing import Any

from feedline.abc.selection import Selection


class Placement(enum.Enum):
    """Who does what is left to do."""

    DATASET = "dataset"
    """The dataset: images come as arrays, finished."""
    COLLATE = "collate"
    """The collate function: images come as `DeferredImage` with their pixels."""
    DEVICE = "device"
    """The device: batches come as `DeferredImages` with their pixels, a byte per value."""
    DECODE = "decode"
    """The device, which decodes as well: batches come as `DeferredImages` with encoded files."""


class _Current(threading.local):
    placement = Placement.DATASET


_current = _Current()


def placement() -> Placement:
    """Return where the images of this thread are finished."""
    return _current.placement


def place(placement: Placement) -> Placement:
    """Say where the images of this thread are finished from now on; returns where they were before."""
    before, _current.placement = _current.placement, placement
    return before


# Any: a dataset is any object that fits.
def hands_on_images(dataset: Any) -> bool:
    """True if images of a dataset come to the collate function as their transform returned them.

    Only then something of them may be left to do: code of the user's in between expects arrays. Sources say it of
    themselves; a selection of their samples does nothing to them.
    """
    torchs = type(dataset).__name__ if type(dataset).__module__ == "torch.utils.data.dataset" else None
    if isinstance(dataset, Selection) or torchs == "Subset":
        return hands_on_images(dataset.dataset)
    if torchs == "ConcatDataset":
        return all(map(hands_on_images, dataset.datasets))
    return bool(getattr(dataset, "hands_on_images", False))
