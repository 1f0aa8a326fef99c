"""Question: how many samples per second come from an HDF5 file in random order?

Knob: how the file is laid out (contiguous; chunks of 16 samples; chunks of one sample, packed with gzip), the order
(every sample anywhere, or `BlockSampler`, which shuffles 16 chunks at a time) and the number of workers.

Held still: 20,000 samples of 3x64x64 float32 and a label, batches of 64; the consumer touches every page. torch's
loader reads them through the dataset that people write: it opens `h5py.File` when the first sample is asked for, and
returns one sample per index. feedline's loader reads them through `HDF5Dataset`. Samples and order are the same.

How to read it: `x torch` compares at the same number of workers, `x own inline` tells whether workers help. The file is
read from the page cache, which the first, untimed pass fills: a disk would be slower for both. Of a packed file nearly
all of the time goes to unpacking, which both leave to the same library.

    python -m benchmarks.w8_hdf5
    python -m benchmarks.w8_hdf5 --layout gzip-16 --order blocks --workers 2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness, rows, workloads
from feedline.datasets import HDF5Dataset
from feedline.samplers import BlockSampler

COLUMNS = (rows.Column("samples_per_s", "samples/s", with_range=True), *rows.COSTS)
ORDERS = ("random", "blocks")


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=1.0, warmup=8, engine=["process"])
    parser.add_argument(
        "--layout", nargs="+", choices=workloads.HDF5_LAYOUTS, default=["contiguous", "chunked", "gzip"]
    )
    parser.add_argument("--order", nargs="+", choices=ORDERS, default=["random"])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--samples", type=int, default=20_000, help="samples in the file (20,000)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--data", type=Path, help="folder for the files; they are kept in the temporary folder if unset"
    )
    parser.add_argument(
        "--start-method", choices=rows.START_METHODS, help="how workers start; Python's default if unset"
    )
    arguments = parser.parse_args(argv)
    rows.publish("w8_hdf5", rows.measure_entries(entries(arguments), arguments), arguments, columns=COLUMNS)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    paths = {layout: workloads.hdf5_file(arguments.samples, layout, arguments.data) for layout in arguments.layout}
    return [
        harness.Entry(
            case={"layout": layout, "order": order, "workers": workers},
            side=side,
            open=partial(opened, side, path, order, workers, arguments),
            consume=workloads.touch,
            batch_size=arguments.batch_size,
        )
        for layout, path in paths.items()
        for order in arguments.order
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]


def opened(
    side: harness.Side, path: Path, order: str, workers: int, arguments: argparse.Namespace
) -> harness.SizedIterable:
    ours = HDF5Dataset(path, fields=("image", "label"))
    dataset = workloads.HandWrittenHDF5(path) if side.library == harness.TORCH else ours
    # Any: arguments of torch's DataLoader.
    how: dict[str, Any] = {"sampler": BlockSampler(ours.chunk_sizes, 16)} if order == "blocks" else {"shuffle": True}
    started = harness.worker_arguments(workers, start_method=arguments.start_method)
    return side.open(dataset, batch_size=arguments.batch_size, drop_last=True, **how, **started)


if __name__ == "__main__":
    sys.exit(main())
