"""Question: how many rows per second come from a CSV file in random order?

Knob: what the dataset that people write holds (`pandas`: a data frame, a row of which is taken with `iloc`; `csv`: the
rows that the csv module read, whose cells become numbers when a sample is asked for), and the number of workers.

Held still: 200,000 rows of 16 numbers and a label, batches of 64; the consumer touches every page. torch's loader reads
them through the dataset that people write, feedline's through `CSVDataset`.

How to read it: `x torch` compares at the same number of workers. Both peers hold the whole table in memory, in every
worker that touches it; `CSVDataset` holds what it has parsed, which is all of it here. Reading the file for the first
time is not part of the figure.

    python -m benchmarks.w8_csv
    python -m benchmarks.w8_csv --against pandas --workers 2
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks import harness, rows, workloads
from feedline.datasets import CSVDataset

COLUMNS = (rows.Column("samples_per_s", "samples/s", with_range=True), *rows.COSTS)
AGAINST = ("pandas", "csv")
NUMBERS = 16


class Frame(Dataset[Any]):
    """A data frame, row by row."""

    def __init__(self, path: Path) -> None:
        import pandas

        self.frame = pandas.read_csv(path)

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, index: int) -> Any:
        row = self.frame.iloc[index].to_numpy()
        return torch.tensor(row[:-1], dtype=torch.float32), int(row[-1])


class Lines(Dataset[Any]):
    """The rows of the csv module."""

    def __init__(self, path: Path) -> None:
        with open(path, newline="") as file:
            self.rows = list(csv.reader(file))[1:]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index]
        return torch.tensor([float(cell) for cell in row[:-1]]), int(row[-1])


def csv_file(count: int, folder: Path | None) -> Path:
    """Write the table, unless it is there; return its path."""
    folder = folder or Path(tempfile.gettempdir()) / f"feedline-benchmarks-{os.getuid()}" / "csv"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{count}.csv"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}.part")
        numbers = np.random.default_rng(0).standard_normal((count, NUMBERS))
        table = np.column_stack([numbers, np.arange(count) % 10])
        names = ",".join([*(f"x{number}" for number in range(NUMBERS)), "label"])
        np.savetxt(part, table, ["%.6f"] * NUMBERS + ["%d"], ",", header=names, comments="")
        part.rename(path)
    return path


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=1.0, warmup=8, engine=["process"])
    parser.add_argument("--against", nargs="+", choices=AGAINST, default=list(AGAINST))
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--samples", type=int, default=200_000, help="rows in the file (200,000)")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--data", type=Path, help="folder for the file; it is kept in the temporary folder if unset")
    parser.add_argument(
        "--start-method", choices=rows.START_METHODS, help="how workers start; Python's default if unset"
    )
    arguments = parser.parse_args(argv)
    rows.publish("w8_csv", rows.measure_entries(entries(arguments), arguments), arguments, columns=COLUMNS)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    path = csv_file(arguments.samples, arguments.data)
    return [
        harness.Entry(
            case={"against": against, "workers": workers},
            side=side,
            open=partial(opened, side, path, against, workers, arguments),
            consume=workloads.touch,
            batch_size=arguments.batch_size,
        )
        for against in arguments.against
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]


def opened(
    side: harness.Side, path: Path, against: str, workers: int, arguments: argparse.Namespace
) -> harness.SizedIterable:
    dataset: Any  # of one class or the other
    if side.library == harness.TORCH:
        dataset = Frame(path) if against == "pandas" else Lines(path)
    else:
        dataset = CSVDataset(path, types={f"x{number}": "float32" for number in range(NUMBERS)})
        dataset.__getitems__(range(len(dataset)))  # which workers go on with, as they do with the peers' tables
    started = harness.worker_arguments(workers, start_method=arguments.start_method)
    return side.open(dataset, batch_size=arguments.batch_size, drop_last=True, shuffle=True, **started)


if __name__ == "__main__":
    sys.exit(main())
