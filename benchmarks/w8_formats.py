"""Question: which format should the same samples be stored in?

Knob: the format (`npy`, `hdf5`, `lmdb`, `parquet`, `tar`, and single `files`), what a sample is (`array`: 3x64x64
float32 and a label; `picture`: the bytes of a JPEG of about 4 KB and a label), the order (`random` or `sequential`) and
the number of workers.

Held still: the samples, batches of 64, no transform: what is measured is reading, not decoding. `feedline.pack` wrote
the files. Both loaders read through the same dataset object.

How to read it: compare rows of one order and one kind of sample. `MB` is the size on the disk. Files are read from the
page cache, which the first, untimed pass fills: with a disk that is slower than memory the sizes decide, and for single
files the number of reads.

    python -m benchmarks.w8_formats
    python -m benchmarks.w8_formats --sample picture --order sequential --workers 2
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness, rows, workloads
from feedline import datasets, pack

FORMATS = ("npy", "hdf5", "lmdb", "parquet", "tar", "files")
SUFFIXES = {"npy": "", "hdf5": ".h5", "lmdb": ".lmdb", "parquet": ".parquet", "tar": ".tar", "files": ""}
COLUMNS = (
    rows.Column("samples_per_s", "samples/s", with_range=True),
    rows.Column("disk_mb", "MB"),
    *rows.COSTS,
)


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


def stored(kind: str, name: str, count: int, folder: Path | None) -> Path:
    """Write the samples in a format, unless they are there; return where."""
    folder = folder or Path(tempfile.gettempdir()) / f"feedline-benchmarks-{os.getuid()}" / "formats"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}-{count}-{name}{SUFFIXES[name]}"
    if path.exists():
        return path
    if name == "files":
        partial_path = path.with_suffix(".part")
        partial_path.mkdir(exist_ok=True)
        for number, sample in enumerate(map(Samples(kind, count).__getitem__, range(count))):
            if kind == "array":
                np.save(partial_path / f"{number:09d}.npy", sample["image"])
            else:
                (partial_path / f"{number:09d}.jpg").write_bytes(sample["image"])
        partial_path.rename(path)
        return path
    pack(Samples(kind, count), path, format=name, verify=False)
    return path


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
    parser = rows.flags(__doc__, seconds=1.0, warmup=8, engine=["process"])
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--sample", nargs="+", choices=("array", "picture"), default=["array", "picture"])
    parser.add_argument("--order", nargs="+", choices=("random", "sequential"), default=["random", "sequential"])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument(
        "--data", type=Path, help="folder for the files; they are kept in the temporary folder if unset"
    )
    arguments = parser.parse_args(argv)
    outcomes = rows.measure_entries(entries(arguments), arguments)
    for outcome in outcomes:
        kind, name = str(outcome.case["sample"]), str(outcome.case["format"])
        for figures in outcome.rounds:
            figures["disk_mb"] = size_mb(stored(kind, name, arguments.samples, arguments.data))
    rows.publish("w8_formats", outcomes, arguments, columns=COLUMNS)
    return 0


def entries(arguments: argparse.Namespace) -> list[harness.Entry]:
    return [
        harness.Entry(
            case={"sample": kind, "order": order, "format": name, "workers": workers},
            side=side,
            open=partial(
                side.open,
                source(kind, name, stored(kind, name, arguments.samples, arguments.data)),
                batch_size=arguments.batch_size,
                drop_last=True,
                shuffle=order == "random",
                **harness.worker_arguments(workers),
            ),
            consume=workloads.touch,
            batch_size=arguments.batch_size,
        )
        for kind in arguments.sample
        for order in arguments.order
        for name in arguments.format
        if not (kind == "picture" and name == "npy")  # pictures differ in size
        for workers in arguments.workers
        for side in harness.sides(workers, arguments.engine)
    ]


if __name__ == "__main__":
    sys.exit(main())
