"""A source of your own: a binary format that feedline does not know, read batch by batch.

    python examples/own_source.py

Shows: any class with `__getitem__` and `__len__` is a dataset. Three things make it a good source. It opens its file
when the first sample is read, not in the constructor, and does not pickle the open file, so it works in every kind of
worker. It says which file is damaged. And as a `feedline.abc.ColumnSource` it reads the samples of a batch together, in
`read_columns`, which pays the cost of Python once per batch instead of once per sample. The loader calls `read_columns`
if the default collate function is used, and `__getitem__` otherwise. `feedline.testing.SourceContract` has the tests
for such a class; docs/sources/own.md shows how to run them.

Look at: the "calls" with and without `read_columns`, the samples per second of both on your machine, and the error for
a file that was "cut off".
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from feedline import DataLoader
from feedline.abc import ColumnSource, memory
from feedline.errors import CorruptSource

RECORD = np.dtype([("station", "<u2"), ("scale", "<f4"), ("signal", "<i2", 64)])
MAGIC = b"SEISMO01"


def write_records(path: Path, count: int) -> None:
    """Write a file: eight bytes that name the format, then records of one size."""
    rng = np.random.default_rng(0)
    records = np.zeros(count, RECORD)
    records["station"] = np.arange(count) % 7
    records["scale"] = rng.uniform(1e-4, 1e-3, count)
    records["signal"] = rng.integers(-3000, 3000, (count, 64))
    path.write_bytes(MAGIC + records.tobytes())


class SeismicRecords(ColumnSource):
    """The records of one file. A sample is a dict of `signal` (float32, 64 values) and `station` (a number)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()  # a worker may have another working directory
        self.count, rest = divmod(self.path.stat().st_size - len(MAGIC), RECORD.itemsize)
        with self.path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise CorruptSource(f"{self.path} is no file of seismic records: it does not begin with {MAGIC!r}.")
        if rest:
            raise CorruptSource(f"{self.path} is cut off: {rest} bytes follow the last of {self.count} records.")
        self._opened: np.ndarray[Any, Any] | None = None
        self.calls = 0

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one sample."""
        self.calls += 1
        record = self._records()[index]
        return {"signal": record["signal"].astype(np.float32) * record["scale"], "station": int(record["station"])}

    def read_columns(self, indices: np.ndarray[Any, Any]) -> dict[str, Any]:
        """Return the samples of a batch as columns."""
        self.calls += 1
        records = self._records()[indices]
        signal = memory.empty(
            (len(indices), 64), np.dtype(np.float32)
        )  # where the batch belongs: it is not copied again
        np.multiply(records["signal"], records["scale"][:, None], out=signal)
        return {"signal": signal, "station": records["station"].astype(np.int64)}

    def _records(self) -> np.ndarray[Any, Any]:
        if self._opened is None:
            self._opened = np.memmap(self.path, RECORD, "r", offset=len(MAGIC))
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}  # each process maps the file for itself


def by_sample(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Collate samples one by one, as any function of your own does."""
    return torch.utils.data.default_collate(samples)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "records.bin"
        write_records(path, 20_000)

        epochs = {}
        for way, collate in (("sample by sample", by_sample), ("read_columns", None)):
            source = SeismicRecords(path)
            begin = time.perf_counter()
            loader = DataLoader(source, 100, shuffle=True, seed=0, collate_fn=collate)
            epochs[way] = [{key: values.clone() for key, values in batch.items()} for batch in loader]
            rate = len(source) / (time.perf_counter() - begin)
            print(f"{way:>16}: {source.calls} calls, {rate:,.0f} samples/s")
        assert source.calls == 200

        # Spawned workers get the source as a pickle, and start from nothing.
        loader = DataLoader(
            SeismicRecords(path), 100, shuffle=True, seed=0, num_workers=1, multiprocessing_context="spawn"
        )
        epochs["spawned"] = [{key: values.clone() for key, values in batch.items()} for batch in loader]
        for batches in zip(*epochs.values(), strict=True):
            for batch in batches:
                assert all(torch.equal(batch[key], batches[0][key]) for key in ("signal", "station"))
        print("the same batches all three ways: one by one, as columns, and as columns in a spawned worker")

        path.write_bytes(path.read_bytes()[:-10])
        try:
            SeismicRecords(path)
        except CorruptSource as error:
            print(f"CorruptSource: {error}".replace(name, "..."))
        else:
            raise AssertionError("the file is damaged, and nothing was said")


if __name__ == "__main__":
    main()
