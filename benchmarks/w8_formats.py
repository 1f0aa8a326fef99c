"""Question: which format should the same samples be stored in?

Knob: the format (`npy`, `hdf5`, `lmdb`, `parquet`, `tar`, and single `files`), what a sample is (`array`: 3x64x64
float32 and a label; `picture`: the bytes of a JPEG of about 4 KB and a label), the order (`random` or `sequential`) and
the number of workers.

Held still: the samples, batches of 64, no transform: what is measured is reading, not decoding. `feedline.pack` wrote
the files. Both loaders read through the same dataset object.

How to read it: compare rows of one order and one kind of sample. `MB` is the size on the disk. Files are read from the
page cache, which the first, untimed pass fills: on a disk that is slower than memory, the sizes decide, and for single
files the number of reads.

    python -m benchmarks.w8_formats
    python -m benchmarks.w8_formats --sample picture --order sequential --workers 2
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import flags, workloads
from feedline import datasets, pack
from feedline.tools.measure import harness, rows

FORMATS = ("npy", "hdf5", "lmdb", "parquet", "tar", "files")
SUFFIXES = {"npy": "", "hdf5": ".h5", "lmdb": ".lmdb", "parquet": ".parquet", "tar": ".tar", "files": ""}
COLUMNS = (rows.SAMPLES, rows.Column("disk_mb", "MB"), *rows.COSTS)


class Samples:
    """What is stored: samples that follow from their index."""

    def __init__(self, kind: str, count: int) -> None:
        self.kind = kind
        self.count = count

    def __len__(self) -> int:
        return self.count

    # Any: an array or the bytes of a picture.
    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = np.random.default_rng(index)
        if self.kind == "array":
            return {"image": generator.random((3, 64, 64), np.float32), "label": index % 1000}
        from PIL import Image

        small = Image.fromarray(generator.integers(0, 256, (12, 12, 3), np.uint8))
        file = io.BytesIO()
        small.resize((96, 96), Image.Resampling.BILINEAR).save(file, "JPEG", quality=85)
        return {"image": file.getvalue(), "label": index % 1000}


def write(kind: str, name: str, count: int, path: Path) -> None:
    """Write the samples in a format."""
    samples = Samples(kind, count)
    if name != "files":
        pack(samples, path, format=name, verify=False)
        return
    path.mkdir()
    for number in range(count):
        image = samples[number]["image"]
        if kind == "array":
            np.save(path / f"{number:09d}.npy", image)
        else:
            (path / f"{number:09d}.jpg").write_bytes(image)


# Any: any of feedline's datasets.
def source(kind: str, name: str, path: Path) -> Any:
    """Open what was stored, with samples of the same form for every format; files have no label."""
    fields = ("image", "label")
    if name == "npy":
        return datasets.ArrayDataset({field: path / f"{field}.npy" for field in fields})
    if name == "hdf5":
        return datasets.HDF5Dataset(path, fields=fields)
    if name == "lmdb":
        return datasets.LMDBDataset(path, fields=fields)
    if name == "parquet":
        return datasets.ParquetDataset(path, fields=fields)
    if name == "tar":
        # Pictures as bytes, as from the other formats.
        how = {"fields": ("image.npy", "cls")} if kind == "array" else {"fields": ("jpg", "cls"), "decode": False}
        return datasets.TarDataset(path, **how)
    return datasets.FileDataset(path, read="npy" if kind == "array" else "bytes", fields="data")


def size_mb(path: Path) -> float:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(file.stat().st_blocks * 512 for file in files) / 1e6


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, engine=["process"], seconds=1.0, workers=[0, 2], samples=10_000, batch_size=64)
    flags.choose(parser, "--format", FORMATS)
    flags.choose(parser, "--sample", ("array", "picture"))
    flags.choose(parser, "--order", ("random", "sequential"))
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    sizes = {}
    for kind in arguments.sample:
        for order in arguments.order:
            for name in arguments.format:
                if kind == "picture" and name == "npy":  # pictures differ in size
                    continue
                count = arguments.samples
                place = f"formats/{kind}-{count}-{name}{SUFFIXES[name]}"
                path = workloads.stored(arguments.data, place, partial(write, kind, name, count))
                sizes[kind, name] = size_mb(path)
                dataset = source(kind, name, path)
                entries += rows.loaders(
                    arguments,
                    {"sample": kind, "order": order, "format": name},
                    rows.same(dataset),
                    drop_last=True,
                    shuffle=order == "random",
                )
    outcomes = rows.measure(entries, arguments)
    for outcome in outcomes:
        for figures in outcome.rounds:
            figures["disk_mb"] = sizes[str(outcome.case["sample"]), str(outcome.case["format"])]
    rows.publish("w8_formats", outcomes, arguments, columns=COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
