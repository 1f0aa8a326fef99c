"""What torch's own loader has to know of iterable sources, and they of it. torch is never imported for this."""

from __future__ import annotations

import sys


def tell_torch(kind: type) -> None:
    """Make a class one of torch's iterable datasets, by which loaders know them, if the program uses torch."""
    data = sys.modules.get("torch.utils.data")
    if data is not None:
        data.IterableDataset.register(kind)


def torch_worker() -> tuple[int, int]:
    """Return which of how many workers of torch's loader this is; the only one if it is none."""
    data = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
