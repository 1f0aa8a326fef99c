"""Whether a dataset is map-style or iterable."""

from __future__ import annotations

import os
import sys

from feedline.errors import BadOption
from feedline.system.failures import INSTEAD_OF_PATH
from feedline.types import DatasetKind


def kind_of(dataset: object, name: str) -> DatasetKind:
    """Return the kind of a dataset; errors call it `name`."""
    kind = type(dataset)
    if isinstance(dataset, (str, os.PathLike)):
        raise BadOption(f"{name}={dataset!r} is a {kind.__name__}, not a dataset. {INSTEAD_OF_PATH}")
    torch_data = sys.modules.get("torch.utils.data")  # its iterable datasets inherit a __getitem__ that only raises
    if torch_data is not None and isinstance(dataset, torch_data.IterableDataset):
        return DatasetKind.ITERABLE
    if hasattr(kind, "__getitem__"):
        if not hasattr(kind, "__len__"):
            raise BadOption(f"{name} is a {kind.__name__} with __getitem__ but without __len__: add a __len__ to it.")
        return DatasetKind.MAP
    if not hasattr(kind, "__iter__"):
        raise BadOption(f"{name}={dataset!r} is not a dataset: it has neither __getitem__ nor __iter__.")
    if hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
        raise BadOption(
            f"{name} is a {kind.__name__}, which can be iterated over only once. Pass a list, or an object whose "
            "__iter__ starts from the beginning."
        )
    return DatasetKind.ITERABLE
