"""Question: what happens to a file, a database or an HDF5 file that a dataset opens before its workers are forked?

Each dataset holds 4,000 records; record i holds the number i. A sample is right if it holds its own index. Each dataset
is read by four worker processes, three epochs, once with the handle opened in the constructor and once with the handle
opened at first use.

How to read it: `wrong` counts samples with the content of another record, `raised` is the first exception.

    python docs/learn/experiments/shared_handle.py
"""

# ruff: noqa: D101, D103, T201

import os
import sqlite3
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import h5py
import lmdb
import numpy as np
import torch.utils.data

import feedline

COUNT = 4000


class Records:
    """A dataset over something that has to be opened."""

    def __init__(self, path, *, early):
        self.path = path
        self.handle = self.open() if early else None

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        if self.handle is None:
            self.handle = self.open()
        return index, self.read(index)


class FileRecords(Records):
    def open(self):
        return open(self.path, "rb", buffering=0)

    def read(self, index):
        self.handle.seek(index * 4096)
        return int.from_bytes(self.handle.read(4096)[:8], "little")


class ZipRecords(Records):
    def open(self):
        return zipfile.ZipFile(self.path)

    def read(self, index):
        return int.from_bytes(self.handle.read(str(index))[:8], "little")


class SQLiteRecords(Records):
    def open(self):
        return sqlite3.connect(self.path)

    def read(self, index):
        return self.handle.execute("SELECT value FROM records WHERE id = ?", (index,)).fetchone()[0]


class HDF5Records(Records):
    def open(self):
        return h5py.File(self.path, "r")["records"]

    def read(self, index):
        return int(self.handle[index][0])


class LMDBRecords(Records):
    def open(self):
        return lmdb.open(self.path, readonly=True, lock=False)

    def read(self, index):
        with self.handle.begin() as transaction:
            return int.from_bytes(transaction.get(b"%08d" % index), "little")


def make(folder):
    records = [np.full(512, number, np.int64).tobytes() for number in range(COUNT)]
    (folder / "records.bin").write_bytes(b"".join(records))
    with zipfile.ZipFile(folder / "records.zip", "w") as archive:
        for number, record in enumerate(records):
            archive.writestr(str(number), record)
    with sqlite3.connect(folder / "records.sqlite") as database:
        database.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, value INTEGER)")
        database.executemany("INSERT INTO records VALUES (?, ?)", [(i, i) for i in range(COUNT)])
    database.close()
    with h5py.File(folder / "records.h5", "w") as file:
        rows = np.repeat(np.arange(COUNT), 64).reshape(COUNT, 64)
        file.create_dataset("records", data=rows, chunks=(10, 64), compression="gzip")
    with lmdb.open(str(folder / "records.lmdb"), map_size=1 << 27) as database, database.begin(write=True) as writing:
        for i in range(COUNT):
            writing.put(b"%08d" % i, i.to_bytes(8, "little"))


def trial(loader):
    wrong = seen = 0
    try:
        for _ in range(3):
            for wanted, found in loader:
                wrong += int((wanted != found).sum())
                seen += len(wanted)
    except Exception as error:
        return f"{wrong:5} of {seen:5} wrong, raised {type(error).__name__}: {str(error).splitlines()[-1][:60]}"
    return f"{wrong:5} of {seen:5} wrong"


def main():
    folder = Path(tempfile.mkdtemp())
    make(folder)
    kinds = [(FileRecords, "bin"), (ZipRecords, "zip"), (SQLiteRecords, "sqlite")]
    kinds += [(HDF5Records, "h5"), (LMDBRecords, "lmdb")]
    for kind, suffix in kinds:
        path = str(folder / f"records.{suffix}")
        for early in (True, False):
            for name, loader in (("torch", torch.utils.data.DataLoader), ("feedline", feedline.DataLoader)):
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    result = trial(loader(kind(path, early=early), 20, num_workers=4, multiprocessing_context="fork"))
                told = [str(one.message) for one in caught if issubclass(one.category, feedline.errors.DataWarning)]
                when = "before the fork" if early else "at first use"
                print(f"{kind.__name__:14} opened {when:15} {name:8} {result}{' (warned)' if told else ''}")
                if told:
                    print("    " + told[0], file=sys.stderr)
                sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("HDF5_USE_FILE_LOCKING", "FALSE")
    main()
