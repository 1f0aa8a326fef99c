"""Whether a cache can be: of this dataset, and of this size."""

from __future__ import annotations

import inspect
import os
from typing import Any

from feedline.datasets.kind import kind_of
from feedline.errors import BadOption
from feedline.types import DatasetKind


# Any: a dataset is any object.
def check_dataset(dataset: Any, *, freeze_random: bool) -> None:
    """Refuse a dataset whose samples cannot be kept.

    Raises:
        BadOption: it is iterable, half asynchronous, or its samples depend on the epoch and are not to be frozen.
    """
    name = type(dataset).__name__
    if kind_of(dataset, "dataset") is DatasetKind.ITERABLE:
        raise BadOption(
            f"A {name} has no __getitem__, so that a cache would not know which sample is which. Store what it yields "
            "in files, or give a map-style dataset."
        )
    one, several = (getattr(type(dataset), getter, None) for getter in ("__getitem__", "__getitems__"))
    if inspect.iscoroutinefunction(several) and not inspect.iscoroutinefunction(one):
        raise BadOption(
            f"A {name} has an async __getitems__, but its __getitem__ is not async, and a cache asks for single "
            "samples. Make both async."
        )
    if callable(getattr(dataset, "set_epoch", None)) and not freeze_random:
        raise BadOption(
            f"A {name} has a set_epoch: its samples depend on the epoch, and a cache would keep those of the first. "
            "Cache what lies below it, or give freeze_random=True to keep the first anyway."
        )


def affordable(size: int) -> int:
    """Return a size in bytes, if the machine has so much memory.

    Raises:
        BadOption: it has not.
    """
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > whole:
        raise BadOption(f"memory={size} bytes are more than the {whole} bytes of memory that this machine has.")
    return size
