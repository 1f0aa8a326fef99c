"""Question: how many samples per second come from an HDF5 file in random order?

Knob: how the file is laid out (contiguous; chunks of 16 samples; chunks of one sample, packed with gzip), the order
(every sample anywhere, or `BlockSampler`, which shuffles 16 chunks at a time) and the number of workers.

Held still: 20,000 samples of 3x64x64 float32 and a label, batches of 64; the consumer touches every page. torch's
loader reads them through the dataset that people usually write: it opens `h5py.File` when the first sample is
requested, and returns one sample per index. feedline's loader reads them through `HDF5Dataset`. Samples and order are
the same.

How to read it: `x torch` compares at the same number of workers, `x own inline` tells whether workers help. The file is
read from the page cache, which the first, untimed pass fills: a disk would be slower for both. For a compressed file,
nearly all of the time goes to decompression, which both leave to the same library.

    python -m benchmarks.w8_hdf5
    python -m benchmarks.w8_hdf5 --layout gzip-16 --order blocks --workers 2
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks import flags, workloads
from feedline.datasets import HDF5Dataset
from feedline.samplers import BlockSampler
from feedline.tools.measure import harness, rows

SHAPE = (3, 64, 64)
# Any: arguments of h5py's create_dataset.
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (16, *SHAPE)},
    "gzip": {"chunks": (1, *SHAPE), "compression": "gzip"},
    "gzip-16": {"chunks": (16, *SHAPE), "compression": "gzip"},
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, engine=["process"], seconds=1.0, workers=[0, 2], samples=20_000, batch_size=64)
    flags.choose(parser, "--layout", list(LAYOUTS), ["contiguous", "chunked", "gzip"])
    flags.choose(parser, "--order", ("random", "blocks"), ["random"])
    flags.add_data(parser)
    flags.add_start_method(parser)
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    for layout in arguments.layout:
        name = f"hdf5/{layout}-{arguments.samples}.h5"
        path = workloads.stored(arguments.data, name, partial(write, arguments.samples, layout))
        for order in arguments.order:
            blocks = BlockSampler(HDF5Dataset(path).chunk_sizes, 16) if order == "blocks" else None
            entries += rows.loaders(
                arguments,
                {"layout": layout, "order": order},
                partial(dataset, path),
                drop_last=True,
                shuffle=blocks is None,
                sampler=blocks,
            )
    rows.publish("w8_hdf5", rows.measure(entries, arguments), arguments, columns=(rows.SAMPLES, *rows.COSTS))
    return 0


def dataset(path: Path, side: harness.Side) -> object:
    return HandWritten(path) if side.library == harness.TORCH else HDF5Dataset(path, fields=("image", "label"))


def write(count: int, layout: str, path: Path) -> None:
    """Write images of 3x64x64 float32 and labels."""
    import h5py

    generator = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        images = file.create_dataset("image", (count, *SHAPE), np.float32, **LAYOUTS[layout])
        file["label"] = np.arange(count) % 1000
        for start in range(0, count, 1024):
            rows = (min(1024, count - start), *SHAPE)
            # What an 8-bit image becomes when it is normalised: 256 different numbers.
            images[start : start + 1024] = (generator.integers(0, 256, rows) / 255 - 0.45) / 0.225


class HandWritten(Dataset[tuple[torch.Tensor, int]]):
    """An HDF5 file as people read it: opened when the first sample is asked for, one sample per index."""

    def __init__(self, path: Path) -> None:
        import h5py

        self.path = str(path)
        # Any: h5py has no type annotations.
        self.file: Any = None
        with h5py.File(self.path, "r") as file:
            self.length = len(file["label"])

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self.file is None:
            import h5py

            self.file = h5py.File(self.path, "r")
            self.images, self.labels = self.file["image"], self.file["label"]
        return torch.from_numpy(self.images[index]), int(self.labels[index])


if __name__ == "__main__":
    sys.exit(main())
