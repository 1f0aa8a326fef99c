"""Question: how many samples per second come from a store, and which one should it be?

Knob: the store, the form of its samples, the order, the number of workers, and who reads.
  array, picture  what `feedline.pack` wrote: 3x64x64 float32, or the bytes of a JPEG of about 4 KB; and a label
  jpeg            256x256, decoded to uint8
  raw             LMDB values that are the memory of an array
  contiguous, chunked, gzip
                  layouts of HDF5: no chunks; chunks of 16 samples; of one, packed
  flat            rows of Parquet that are lists of 12,288 float32, 500 in a row group
  table, numbers  16 numbers and a label; `table` of Parquet has a column of texts as well
torch's loader reads the dataset that people usually write (`torch by hand`; a data frame, the rows of the csv module, a
dict of arrays or row groups with pyarrow, Hugging Face's datasets, the webdataset package), and the same dataset object
as feedline (`torch same`). `feedline stream` shuffles shards or row groups and a buffer, `vector` takes 16 columns as
one field, `unpacked` keeps a copy of a Parquet file that does not fit into memory.

Held still: the samples, batches of 64; the consumer touches every page. Files come from the page cache, which the
first, untimed pass fills: on a disk that is slower than memory, the sizes decide, and for single files the number of
reads. Files of other libraries, and indices, are written before the clock starts.

How to read it: `x torch` is the ratio to the first row of torch of the same form; to compare with another row, divide.
`MB` is the size on the disk.

    python -m benchmarks.w8_stores
    python -m benchmarks.w8_stores --store npy hdf5 lmdb parquet tar files --form array picture --peers same
    python -m benchmarks.w8_stores --store csv --workers 2
"""

from __future__ import annotations

import importlib.util
import io
import math
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset

from benchmarks import flags, workloads
from benchmarks.readers import NUMBERS, SHAPE, Make, readers
from feedline import pack
from feedline.tools.measure import harness, rows
from feedline.tools.measure.harness import Loading
from feedline.tools.measure.rows import entries

SHARDS = 16
# Any: arguments of h5py's create_dataset.
LAYOUTS: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": (16, *SHAPE)},
    "gzip": {"chunks": (1, *SHAPE), "compression": "gzip"},
}
STORES = {
    "npy": ("array",),
    "hdf5": ("array", "picture", *LAYOUTS),
    "lmdb": ("array", "picture", "raw"),
    "parquet": ("array", "picture", "flat", "table", "numbers"),
    "tar": ("array", "picture", "jpeg"),
    "files": ("array", "picture"),
    "csv": ("numbers",),
}
FORMS = tuple(dict.fromkeys(form for forms in STORES.values() for form in forms))
PEERS = ("hand", "same", "datasets", "webdataset", "litdata")
COLUMNS = (rows.SAMPLES, rows.Column("disk_mb", "MB"), *rows.COSTS)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, engine=["process"], seconds=1.0, workers=[0, 2], samples=10_000, batch_size=64)
    flags.choose(parser, "--store", tuple(STORES))
    flags.choose(parser, "--form", FORMS)
    flags.choose(parser, "--order", ("random", "sequential"), ("random",))
    flags.choose(parser, "--peers", PEERS)
    flags.add_data(parser)
    arguments = parser.parse_args(argv)
    found: list[harness.Entry] = []
    sizes = {}
    for store in arguments.store:
        for form in (form for form in STORES[store] if form in arguments.form):
            path = written(store, form, arguments.samples, arguments.data)
            sizes[store, form] = size_mb(path)
            makes = {name: make for name, make in readers(store, form, path).items() if is_wanted(name, arguments)}
            for order in arguments.order:
                ways = {name: partial(opened, order, make) for name, make in makes.items()}
                case: harness.Case = {"store": store, "form": form, "order": order}
                found += entries(arguments, case, ways, length=arguments.samples // arguments.batch_size)
    with warnings.catch_warnings():  # of the images that the webdataset package hands to torch
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        outcomes = rows.measure(found, arguments)
    for outcome in outcomes:
        for figures in outcome.rounds:
            figures["disk_mb"] = sizes[str(outcome.case["store"]), str(outcome.case["form"])]
    rows.publish("w8_stores", outcomes, arguments, columns=COLUMNS)
    return 0


def is_wanted(name: str, arguments: Any) -> bool:
    """Return whether a reader was asked for, and its package is there."""
    library, _, remark = name.partition(" ")
    if library == harness.FEEDLINE:
        return True
    peer = "hand" if remark.startswith("by hand") else remark if library == harness.TORCH else library
    package = peer if peer in ("datasets", "webdataset", "litdata") else "torch"
    return peer in arguments.peers and importlib.util.find_spec(package) is not None


# Any: a loader of any library.
def opened(order: str, make: Make, loading: Loading) -> Any:
    """Open a loader; streams have an order of their own."""
    made = make(loading)
    if hasattr(made, "num_workers"):
        return made
    if not hasattr(made, "__getitem__") or isinstance(made, IterableDataset):
        return loading.open(made)
    return loading.open(made, shuffle=order == "random", drop_last=True)


# Any, from here on: a sample, and options of several writers.
class Samples:
    """What is stored: samples that follow from their index."""

    def __init__(self, form: str, count: int) -> None:
        self.form = form
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = np.random.default_rng(index)
        label = index % 1000
        if self.form not in ("picture", "jpeg"):
            # What an 8-bit image becomes when it is normalised: 256 different numbers.
            pixels = (generator.integers(0, 256, SHAPE) / 255 - 0.45) / 0.225
            return {"image": pixels.astype(np.float32), "label": label}
        from PIL import Image

        small, large = (12, 96) if self.form == "picture" else (32, 256)
        coarse = Image.fromarray(generator.integers(0, 256, (small, small, 3), np.uint8))
        file = io.BytesIO()
        coarse.resize((large, large), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
        return {"image": file.getvalue(), "label": label}


def written(store: str, form: str, count: int, data: Path | None) -> Path:
    """Write the samples, unless they are there."""
    suffix = {"npy": "", "tar": "", "files": "", "hdf5": ".h5"}.get(store, f".{store}")
    writers: Mapping[str, Callable[..., None]] = {"csv": write_csv, "files": write_files, "hdf5": write_hdf5}
    write = writers.get(store, write_packed)
    if (store, form) == ("lmdb", "raw"):
        write = partial(write_lmdb, lambda sample: sample["image"].tobytes())
    elif store == "lmdb":
        pickles = f"stores/{form}-{count}-{store}.pickles"
        workloads.stored(data, pickles, partial(write_lmdb, pickle.dumps, Samples(form, count), store))
    elif store == "parquet" and form in ("flat", "table", "numbers"):
        write = write_table
    return workloads.stored(data, f"stores/{form}-{count}-{store}{suffix}", partial(write, Samples(form, count), store))


def write_packed(samples: Samples, store: str, path: Path) -> None:
    options: dict[str, Any] = {"samples_per_shard": -(-len(samples) // SHARDS)} if store == "tar" else {}
    pack(samples, path, format=store, verify=False, **options)


def write_files(samples: Samples, store: str, path: Path) -> None:
    path.mkdir()
    for number in range(len(samples)):
        image = samples[number]["image"]
        if samples.form == "array":
            np.save(path / f"{number:09d}.npy", image)
        else:
            (path / f"{number:09d}.jpg").write_bytes(image)


def write_hdf5(samples: Samples, store: str, path: Path) -> None:
    if samples.form not in LAYOUTS:
        return write_packed(samples, store, path)
    import h5py

    with h5py.File(path, "w") as file:
        images = file.create_dataset("image", (len(samples), *SHAPE), np.float32, **LAYOUTS[samples.form])
        file["label"] = np.arange(len(samples)) % 1000
        for start in range(0, len(samples), 1024):
            rows = range(start, min(start + 1024, len(samples)))
            images[start : rows.stop] = np.stack([samples[number]["image"] for number in rows])


def write_lmdb(value_of: Callable[[Any], bytes], samples: Samples, store: str, path: Path) -> None:
    import lmdb

    with lmdb.open(str(path), map_size=1 << 36) as database, database.begin(write=True) as transaction:
        for number in range(len(samples)):
            transaction.put(b"%012d" % number, value_of(samples[number]))


def write_csv(samples: Samples, store: str, path: Path) -> None:
    numbers = np.random.default_rng(0).standard_normal((len(samples), len(NUMBERS)))
    table = np.column_stack([numbers, np.arange(len(samples)) % 10])
    names = ",".join([*NUMBERS, "label"])
    np.savetxt(path, table, ["%.6f"] * len(NUMBERS) + ["%d"], ",", header=names, comments="")


def write_table(samples: Samples, store: str, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator, count = np.random.default_rng(0), len(samples)
    columns: dict[str, Any] = {"label": np.arange(count) % 1000}
    if samples.form == "flat":
        pixels = pa.array(generator.random(count * math.prod(SHAPE), np.float32))
        columns["image"] = pa.FixedSizeListArray.from_arrays(pixels, math.prod(SHAPE))
    else:
        columns |= {name: generator.random(count, np.float32) for name in NUMBERS}
    if samples.form == "table":
        columns["name"] = [f"row number {number}" for number in range(count)]
    pq.write_table(pa.table(columns), path, row_group_size=500 if samples.form == "flat" else 2000)


def size_mb(path: Path) -> float:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(file.stat().st_blocks * 512 for file in files) / 1e6


if __name__ == "__main__":
    sys.exit(main())
