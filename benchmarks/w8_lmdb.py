"""Question: how many samples per second come from an LMDB database in random order?

Knob: what the values are (`raw`: the memory of an image; `record`: image and label, as `feedline pack` writes them) and
the number of workers.

Held still: 20,000 samples of 3x64x64 float32, batches of 64; the consumer touches every page. torch's loader reads them
through the dataset that people usually write: it opens the database, read-only and without locks, when the first sample
is requested, and returns one sample per index; image and label are a pickle. feedline's loader reads them through
`LMDBDataset`.

How to read it: `x torch` compares at the same number of workers, `x own inline` tells whether workers help. The
database is read from the page cache, which the first, untimed pass fills: a disk would be slower for both.

    python -m benchmarks.w8_lmdb
    python -m benchmarks.w8_lmdb --values record --workers 2 --engine process thread
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from benchmarks import flags, workloads
from feedline.datasets import LMDBDataset
from feedline.memory.sharing import records
from feedline.tools.measure import harness, rows

SHAPE = (3, 64, 64)


def main(argv: Sequence[str] | None = None) -> int:
    parser = flags.parser(__doc__, engine=["process"], seconds=1.0, workers=[0, 2], samples=20_000, batch_size=64)
    flags.choose(parser, "--values", ("raw", "record"))
    flags.add_data(parser)
    flags.add_start_method(parser)
    arguments = parser.parse_args(argv)
    entries: list[harness.Entry] = []
    for values in arguments.values:
        made = partial(dataset, values, arguments.samples, arguments.data)
        entries += rows.loaders(arguments, {"values": values}, made, drop_last=True, shuffle=True)
    rows.publish("w8_lmdb", rows.measure(entries, arguments), arguments, columns=(rows.SAMPLES, *rows.COSTS))
    return 0


def dataset(values: str, count: int, data: Path | None, side: harness.Side) -> object:
    if side.library == harness.TORCH and values == "record":
        values = "pickle"
    path = workloads.stored(data, f"lmdb/{values}-{count}", partial(write, count, values))
    if side.library == harness.TORCH:
        return HandWritten(path, pickled=values == "pickle")
    if values == "record":
        return LMDBDataset(path, fields=("image", "label"))
    return LMDBDataset(path, decode={"dtype": "float32", "shape": SHAPE})


def write(count: int, values: str, path: Path) -> None:
    """Write images of 3x64x64 float32.

    Values are the images' memory ("raw"), or image and label, as people pickle them or as `feedline pack` writes them.
    """
    import lmdb

    generator = np.random.default_rng(0)
    with lmdb.open(str(path), map_size=1 << 36) as database, database.begin(write=True) as transaction:
        for number in range(count):
            image = generator.random(SHAPE, np.float32)
            if values == "raw":
                value = image.tobytes()
            elif values == "pickle":
                value = pickle.dumps((image, number % 1000))
            else:
                value = records.encode({"image": image, "label": number % 1000})
            transaction.put(b"%012d" % number, value)
        if values == "record":
            fields = [{"name": "image"}, {"name": "label"}]
            meta = {"feedline": 1, "count": count, "encoding": "record", "fields": fields}
            transaction.put(b"__feedline__", json.dumps(meta).encode())


class HandWritten(Dataset[Any]):
    """An LMDB database as people read it: opened when the first sample is asked for, one sample per index."""

    def __init__(self, path: Path, *, pickled: bool) -> None:
        import lmdb

        self.path = str(path)
        self.pickled = pickled
        # Any: lmdb's type annotations are its own affair.
        self.database: Any = None
        with lmdb.open(self.path, readonly=True, lock=False) as database:
            self.length = database.stat()["entries"]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.database is None:
            import lmdb

            self.database = lmdb.open(self.path, readonly=True, lock=False, readahead=False, meminit=False)
        with self.database.begin(buffers=True) as transaction:
            value = transaction.get(b"%012d" % index)
            if self.pickled:
                image, label = pickle.loads(value)
                return torch.from_numpy(image), label
            return torch.from_numpy(np.frombuffer(value, np.float32).reshape(SHAPE).copy())


if __name__ == "__main__":
    sys.exit(main())
