"""Question: how many samples per second come from Parquet files in random order?

Knob: against whom (`pyarrow`: the dataset that people write around pyarrow; `datasets`: Hugging Face's datasets, which
turn the files into Arrow files first; `same object`: the same Hugging Face dataset in both loaders), what a sample is
(`image`: 3x64x64 float32 and a label; `table`: 16 numbers, a string and a label), how much of the file fits into what
each worker keeps (`all`, a `quarter`, or a quarter with `cache=`: `unpacked`) and the number of workers.

Held still: 20,000 samples in row groups of 500, snappy, batches of 64, shuffled; the consumer touches every page. The
hand-written dataset keeps as many row groups as feedline does, and returns one sample per index. Hugging Face's has the
format "torch" and is asked for whole batches, as torch's loader does by itself. Except for `same object`, feedline
reads the Parquet file through `ParquetDataset`.

How to read it: `x torch` compares at the same number of workers. Files come from the page cache. With `quarter`, most
of the time goes to reading and unpacking row groups that were dropped before: random access to Parquet beyond what fits
into memory is a bad idea with any library. `unpacked` is what compares best with Hugging Face's, which keep everything
in Arrow files. Both libraries' files are made before the clock starts.

    python -m benchmarks.w8_parquet
    python -m benchmarks.w8_parquet --against datasets --sample image --workers 2
"""

from __future__ import annotations

import argparse
import bisect
import functools
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness, rows, workloads
from feedline.datasets import ParquetDataset

COLUMNS = (rows.Column("samples_per_s", "samples/s", with_range=True), *rows.COSTS)
AGAINST = ("pyarrow", "datasets", "same object")
FITS = ("all", "quarter", "unpacked")
MEANT = {"pyarrow": ("all", "quarter"), "datasets": ("all", "unpacked"), "same object": ("all",)}
"""What is worth comparing: Hugging Face's are always unpacked, and do not read Parquet files after that."""
GROUP = 500
PIXELS = 3 * 64 * 64
NUMBERS = 16


# Any: a table of pyarrow.
def table(kind: str, count: int) -> Any:
    import pyarrow as pa

    generator = np.random.default_rng(0)
    labels = pa.array(np.arange(count) % 1000)
    if kind == "image":
        pixels = pa.array(generator.random(count * PIXELS, np.float32))
        return pa.table({"image": pa.FixedSizeListArray.from_arrays(pixels, PIXELS), "label": labels})
    numbers = {f"x{number}": generator.random(count, np.float32) for number in range(NUMBERS)}
    return pa.table({**numbers, "name": [f"row number {number}" for number in range(count)], "label": labels})


def parquet_file(kind: str, count: int, folder: Path | None) -> Path:
    """Write the file, unless it is there; return where."""
    import pyarrow.parquet as pq

    folder = folder or Path(tempfile.gettempdir()) / f"feedline-benchmarks-{os.getuid()}" / "parquet"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{count}-{PIXELS}.parquet"
    if not path.exists():
        part = path.with_suffix(".part")
        pq.write_table(table(kind, count), part, row_group_size=GROUP)
        part.rename(path)
    return path


class HandWritten:
    """What people write: a row group is read when a sample of it is asked for, and some are kept."""

    def __init__(self, path: Path, kept: int) -> None:
        self.path = path
        self.kept = kept
        self.file: Any = None

    def _open(self) -> None:
        import pyarrow.parquet as pq

        self.file = pq.ParquetFile(self.path)
        metadata = self.file.metadata
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self.starts = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        self.group = functools.lru_cache(self.kept)(self.file.read_row_group)

    def __len__(self) -> int:
        if self.file is None:
            self._open()
        return int(self.starts[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.file is None:
            self._open()
        number = bisect.bisect_right(self.starts, index) - 1
        table = self.group(number)
        row = index - self.starts[number]
        sample = {}
        for name in table.column_names:
            value = table.column(name)[row]
            sample[name] = value.values.to_numpy().copy() if name == "image" else value.as_py()
        return sample

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "kept": self.kept, "file": None}


# Any: a dataset of Hugging Face's.
def hugging_face(path: Path) -> Any:
    import datasets

    datasets.disable_progress_bars()
    cache = str(path.with_suffix(".cache"))
    return datasets.Dataset.from_parquet(str(path), cache_dir=cache).with_format("torch")


def main(argv: Sequence[str] | None = None) -> int:
    parser = rows.flags(__doc__, seconds=1.0, warmup=8, engine=["process"])
    parser.add_argument("--against", nargs="+", choices=AGAINST, default=list(AGAINST))
    parser.add_argument("--sample", nargs="+", choices=("image", "table"), default=["image", "table"])
    parser.add_argument("--fits", nargs="+", choices=FITS, default=list(FITS))
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
    rows.publish("w8_parquet", rows.measure_entries(entries(arguments), arguments), arguments, columns=COLUMNS)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    paths = {kind: parquet_file(kind, arguments.samples, arguments.data) for kind in arguments.sample}
    cases = [
        (kind, against, fits, workers)
        for kind in arguments.sample
        for against in arguments.against
        for fits in arguments.fits
        if fits in MEANT[against]
        for workers in arguments.workers
    ]
    return [
        harness.Entry(
            case={"sample": kind, "against": against, "fits": fits, "workers": workers},
            side=side,
            open=partial(opened, side, paths[kind], (kind, against, fits), workers, arguments),
            consume=workloads.touch,
            batch_size=arguments.batch_size,
        )
        for kind, against, fits, workers in cases
        for side in harness.sides(workers, arguments.engine)
    ]


def opened(
    side: harness.Side, path: Path, case: tuple[str, str, str], workers: int, arguments: argparse.Namespace
) -> harness.SizedIterable:
    kind, against, fits = case
    groups = -(-arguments.samples // GROUP)
    kept = groups if fits == "all" else -(-groups // 4)
    # Any: one of three kinds of datasets.
    dataset: Any
    if against == "same object" or (against == "datasets" and side.library == harness.TORCH):
        dataset = hugging_face(path)
    elif side.library == harness.TORCH:
        dataset = HandWritten(path, kept)
    else:
        group_bytes = GROUP * ((PIXELS * 4 + 8) if kind == "image" else (NUMBERS * 4 + 32)) + 8192
        folder = path.with_suffix(".unpacked") if fits == "unpacked" else False
        dataset = ParquetDataset(path, cache_bytes=kept * group_bytes, cache=folder)
    started = harness.worker_arguments(workers, start_method=arguments.start_method)
    return side.open(dataset, batch_size=arguments.batch_size, shuffle=True, drop_last=True, **started)


if __name__ == "__main__":
    sys.exit(main())
