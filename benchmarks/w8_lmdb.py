"""Question: how many samples per second come from an LMDB database in random order?

Knob: what the values are (`raw`: the memory of an image; `record`: image and label, as `feedline pack` writes them) and
the number of workers.

Held still: 20,000 samples of 3x64x64 float32, batches of 64; the consumer touches every page. torch's loader reads them
through the dataset that people write: it opens the database, read-only and without locks, when the first sample is
asked for, and returns one sample per index; image and label are a pickle. feedline's loader reads them through
`LMDBDataset`.

How to read it: `x torch` compares at the same number of workers, `x own inline` tells whether workers help. The
database is read from the page cache, which the first, untimed pass fills: a disk would be slower for both.

    python -m benchmarks.w8_lmdb
    python -m benchmarks.w8_lmdb --values record --workers 2 --engine process thread
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import harness, rows, workloads
from feedline.datasets import LMDBDataset

COLUMNS = (rows.Column("samples_per_s", "samples/s", with_range=True), *rows.COSTS)
VALUES = ("raw", "record")


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=1.0, warmup=8, engine=["process"])
    parser.add_argument("--values", nargs="+", choices=VALUES, default=list(VALUES))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--samples", type=int, default=20_000, help="samples in the database (20,000)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--data", type=Path, help="folder for the databases; they are kept in the temporary folder if unset"
    )
    parser.add_argument(
        "--start-method", choices=rows.START_METHODS, help="how workers start; Python's default if unset"
    )
    arguments = parser.parse_args(argv)
    rows.publish("w8_lmdb", rows.measure_entries(entries(arguments), arguments), arguments, columns=COLUMNS)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    return [
        harness.Entry(
            case={"values": values, "workers": workers},
            side=side,
            open=partial(opened, side, values, workers, arguments),
            consume=workloads.touch,
            batch_size=arguments.batch_size,
        )
        for values in arguments.values
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]


def opened(side: harness.Side, values: str, workers: int, arguments: argparse.Namespace) -> harness.SizedIterable:
    dataset: Any  # of one class or the other
    if side.library == harness.TORCH:
        kept = "pickle" if values == "record" else values
        dataset = workloads.HandWrittenLMDB(
            workloads.lmdb_folder(arguments.samples, kept, arguments.data), pickled=kept == "pickle"
        )
    else:
        path = workloads.lmdb_folder(arguments.samples, values, arguments.data)
        raw = {"dtype": "float32", "shape": workloads.LMDB_SHAPE}
        dataset = LMDBDataset(path, fields=("image", "label")) if values == "record" else LMDBDataset(path, decode=raw)
    started = harness.worker_arguments(workers, start_method=arguments.start_method)
    return side.open(dataset, batch_size=arguments.batch_size, drop_last=True, shuffle=True, **started)


if __name__ == "__main__":
    sys.exit(main())
