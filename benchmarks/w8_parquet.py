"""Question: how many samples per second come from Parquet files in random order?

Knob: the peer (`pyarrow`: the dataset that people usually write around pyarrow; `datasets`: Hugging Face's datasets,
which turn the files into Arrow files first; `same object`: the same Hugging Face dataset in both loaders), what a
sample is (`image`: 3x64x64 float32 and a label; `table`: 16 numbers, a string and a label), how much of the file fits
into what each worker keeps (`all`, a `quarter`, or a quarter with `cache=`: `unpacked`) and the number of workers.

Held still: 20,000 samples in row groups of 500, snappy, batches of 64, shuffled; the consumer touches every page. The
hand-written dataset keeps as many row groups as feedline does, and returns one sample per index. Hugging Face's has the
format "torch", and torch's loader requests whole batches from it. Except for `same object`, feedline reads the Parquet
file through `ParquetDataset`.

How to read it: `x torch` compares at the same number of workers. Files come from the page cache. With `quarter`, most
of the time goes to reading and unpacking row groups that were dropped before: random access to Parquet beyond what fits
into memory is a bad idea with any library. `unpacked` is the fairest comparison with Hugging Face's datasets, which
keep everything in Arrow files. The files of both libraries are written before the clock starts.

    python -m benchmarks.w8_parquet
    python -m benchmarks.w8_parquet --against datasets --sample image --workers 2
"""

from __future__ import annotations

import bisect
import functools
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import flags, workloads
from feedline.datasets import ParquetDataset
from feedline.tools.measure import harness, rows

AGAINST = ("pyarrow", "datasets", "same object")
FITS = ("all", "quarter", "unpacked")
MEANT = {"pyarrow": ("all", "quarter"), "datasets": ("all", "unpacked"), "same object": ("all",)}
"""What is worth comparing: Hugging Face's are always unpacked, and do not read Parquet files after that."""
GROUP = 500
PIXELS = 3 * 64 * 64
NUMBERS = 16


def write(kind: str, count: int, path: Path) -> None:
    """Write the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    labels = pa.array(np.arange(count) % 1000)
    if kind == "image":
        pixels = pa.array(generator.random(count * PIXELS, np.float32))
        table = pa.table({"image": pa.FixedSizeListArray.from_arrays(pixels, PIXELS), "label": labels})
    else:
        numbers = {f"x{number}": generator.random(count, np.float32) for number in range(NUMBERS)}
        table = pa.table({**numbers, "name": [f"row number {number}" for number in range(count)], "label": labels})
    pq.write_table(table, path, row_group_size=GROUP)


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
    parser = flags.parser(__doc__, engine=["process"], seconds=1.0, workers=[0, 2], samples=20_000, batch_size=64)
    flags.choose(parser, "--against", AGAINST)
    flags.choose(parser, "--sample", ("image", "table"))
    flags.choose(parser, "--fits", FITS)
    flags.add_data(parser)
    flags.add_start_method(parser)
    arguments = parser.parse_args(argv)
    count = arguments.samples
    entries: list[harness.Entry] = []
    for kind in arguments.sample:
        path = workloads.stored(arguments.data, f"parquet/{kind}-{count}.parquet", partial(write, kind, count))
        for against in arguments.against:
            for fits in arguments.fits:
                if fits in MEANT[against]:
                    case: harness.Case = {"sample": kind, "against": against, "fits": fits}
                    made = partial(dataset, path, count, kind, against, fits)
                    entries += rows.loaders(arguments, case, made, shuffle=True, drop_last=True)
    rows.publish("w8_parquet", rows.measure(entries, arguments), arguments, columns=(rows.SAMPLES, *rows.COSTS))
    return 0


def dataset(path: Path, count: int, kind: str, against: str, fits: str, side: harness.Side) -> object:
    groups = -(-count // GROUP)
    kept = groups if fits == "all" else -(-groups // 4)
    if against == "same object" or (against == "datasets" and side.library == harness.TORCH):
        return hugging_face(path)
    if side.library == harness.TORCH:
        return HandWritten(path, kept)
    group_bytes = GROUP * ((PIXELS * 4 + 8) if kind == "image" else (NUMBERS * 4 + 32)) + 8192
    folder = path.with_suffix(".unpacked") if fits == "unpacked" else False
    return ParquetDataset(path, cache_bytes=kept * group_bytes, cache=folder)


if __name__ == "__main__":
    sys.exit(main())
