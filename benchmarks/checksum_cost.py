"""Question: what does it cost to compare the checksums that `feedline pack` writes?

Knob: the format, and the bytes of a sample.

Held still: samples of one array of bytes and a label, read in random order, in batches of 32, by the training process
itself. The files are in the page cache. Both passes read the same files and start with a new dataset. In one of them,
all checksums count as already compared, as they do from the second epoch on.

How to read it: `compared` and `not compared` are microseconds of processor time per sample in a first epoch, and
`ms/MB` is their difference per megabyte of samples. Parquet and streams of tar files compare in every epoch.

    python -m benchmarks.checksum_cost
    python -m benchmarks.checksum_cost --format npy lmdb --bytes 1e5 --json checksums.jsonl
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import feedline
from benchmarks import flags, workloads
from feedline.datasets import ArrayDataset, HDF5Dataset, LMDBDataset, TarDataset
from feedline.datasets.framework.checksums import Compared
from feedline.tools.measure import harness, rows

COLUMNS = (
    rows.Column("compared_us", "compared\nus", digits=2, with_range=True),
    rows.Column("not_compared_us", "not\ncompared us", digits=2, with_range=True),
    rows.Column("ms_per_mb", "ms/MB", digits=2, with_range=True),
)
# Any: datasets of all formats.
FORMATS: dict[str, Callable[[Path], Any]] = {
    "lmdb": LMDBDataset,
    "hdf5": HDF5Dataset,
    "tar": lambda path: TarDataset(path, {"x": "x.npy", "label": "cls"}, cache=False),
    "npy": ArrayDataset,
}
PAIRS = 3


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, bytes=[3_000, 30_000, 300_000], megabytes=60)
    flags.choose(parser, "--format", tuple(FORMATS))
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    for size in arguments.bytes:
        count = max(64, arguments.megabytes * 10**6 // size)
        for name in arguments.format:
            file = f"checksums/{size}-{count}.{name}"
            path = workloads.stored(arguments.data, file, partial(write, name, size, count))
            once = partial(measure, FORMATS[name], path, size * count)
            case: harness.Case = {"format": name, "bytes": size}
            entries.append(harness.Entry(case, harness.Side(harness.FEEDLINE), partial(harness.watched, once)))
    rows.publish("checksum_cost", rows.measure(entries, arguments), arguments, columns=COLUMNS, details=False)
    return 0


def write(name: str, size: int, count: int, path: Path) -> None:
    generator = np.random.default_rng(0)
    samples = [{"x": generator.integers(0, 256, size, np.uint8), "label": number} for number in range(count)]
    feedline.pack(samples, path, format=name, workers=0, verify=False)


def measure(opened: Callable[[Path], Any], path: Path, total_bytes: int) -> harness.Figures:
    """Return the processor time of a first epoch with and without comparing, the median of some pairs."""
    took: dict[bool, list[float]] = {True: [], False: []}
    for pair in range(PAIRS):
        for compares in (True, False) if pair % 2 else (False, True):
            took[compares].append(first_epoch(opened, path, compares=compares))
    compared, not_compared = (statistics.median(took[compares]) for compares in (True, False))
    count = len(opened(path))
    return {
        "compared_us": compared / count * 1e6,
        "not_compared_us": not_compared / count * 1e6,
        "ms_per_mb": (compared - not_compared) * 1e3 / (total_bytes / 1e6),
    }


def first_epoch(opened: Callable[[Path], Any], path: Path, *, compares: bool) -> float:
    """Return the processor time of the first epoch of a new dataset, in seconds."""
    start = Compared.__init__

    def all_compared(self: Compared, count: int) -> None:
        start(self, count)
        self.flags[:] = True

    with mock.patch.object(Compared, "__init__", start if compares else all_compared):
        dataset = opened(path)
        loader = feedline.DataLoader(dataset, 32, shuffle=True)
        begun = time.process_time()
        for _ in loader:
            pass
        took = time.process_time() - begun
    loader.close()
    dataset.close()
    return took


if __name__ == "__main__":
    sys.exit(main())
