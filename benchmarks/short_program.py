"""A whole program, as people write one: torch, Pillow, a loader, a few epochs. For `w4_start --whole`.

It is a plain script, because a spawned worker imports whatever its program imports. `--help` of `w4_start` says more.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import PIL.Image
import torch
import torch.utils.data

if TYPE_CHECKING or os.environ["LOADER"] == "torch":
    from torch.utils.data import DataLoader
else:
    from feedline import DataLoader


class Pictures(torch.utils.data.Dataset[torch.Tensor]):
    """Images that are drawn instead of read: what reading costs is the same with every loader."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        image = PIL.Image.new("RGB", (32, 32), (index, 0, 0))
        return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)


if __name__ == "__main__":
    method, workers, epochs = sys.argv[1:]
    given = {"num_workers": int(workers), "multiprocessing_context": None if workers == "0" else method}
    loader = DataLoader(Pictures(), batch_size=8, shuffle=True, **given)  # type: ignore[arg-type]
    for _ in range(int(epochs)):
        for batch in loader:
            assert batch.shape == (8, 3072)
