"""Question: how many rows per second come from a CSV file in random order?

Knob: what the dataset that people usually write holds (`pandas`: a data frame, whose rows are read with `iloc`; `csv`:
the rows that the csv module read, whose cells become numbers when a sample is requested), and the number of workers.

Held still: 200,000 rows of 16 numbers and a label, batches of 64; the consumer touches every page. torch's loader reads
them through that dataset, feedline's through `CSVDataset`.

How to read it: `x torch` compares at the same number of workers. Both peers hold the whole table in memory, in every
worker that touches it; `CSVDataset` holds what it has parsed, which is all of it here. Reading the file for the first
time is not part of the figure.

    python -m benchmarks.w8_csv
    python -m benchmarks.w8_csv --against pandas --workers 2
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks import flags, workloads
from feedline.datasets import CSVDataset
from feedline.tools.measure import harness, rows

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


def write(count: int, path: Path) -> None:
    """Write the table."""
    numbers = np.random.default_rng(0).standard_normal((count, NUMBERS))
    table = np.column_stack([numbers, np.arange(count) % 10])
    names = ",".join([*(f"x{number}" for number in range(NUMBERS)), "label"])
    np.savetxt(path, table, ["%.6f"] * NUMBERS + ["%d"], ",", header=names, comments="")


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, engine=["process"], seconds=1.0, workers=[0, 2], samples=200_000, batch_size=64)
    flags.choose(parser, "--against", AGAINST)
    flags.add_data(parser)
    flags.add_start_method(parser)
    arguments = parser.parse_args(argv)
    path = workloads.stored(arguments.data, f"csv/{arguments.samples}.csv", partial(write, arguments.samples))
    entries: list[harness.Entry] = []
    for against in arguments.against:
        made = partial(dataset, path, against)
        entries += rows.loaders(arguments, {"against": against}, made, drop_last=True, shuffle=True)
    rows.publish("w8_csv", rows.measure(entries, arguments), arguments, columns=(rows.SAMPLES, *rows.COSTS))
    return 0


def dataset(path: Path, against: str, side: harness.Side) -> object:
    if side.library == harness.TORCH:
        return Frame(path) if against == "pandas" else Lines(path)
    ours = CSVDataset(path, types={f"x{number}": "float32" for number in range(NUMBERS)})
    ours.__getitems__(range(len(ours)))  # which workers go on with, as they do with the peers' tables
    return ours


if __name__ == "__main__":
    sys.exit(main())
