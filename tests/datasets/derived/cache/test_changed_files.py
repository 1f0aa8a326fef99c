"""Every source detects a changed file behind a cache: a new file never yields an old sample."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import feedline
from feedline.datasets import (
    ArrayDataset,
    CachedDataset,
    FileDataset,
    HDF5Dataset,
    ImageFolder,
    LMDBDataset,
    ParquetDataset,
    TarDataset,
)
from feedline.datasets.derived.cache.fingerprint import fingerprint
from feedline.errors import PerformanceWarning
from feedline.types import EngineName

COUNT = 6
Write = Callable[[Path, int], Any]
"""Writes files with a number as their value into a folder, overwriting old ones; returns a function to open them."""


def files(folder: Path, value: int) -> Any:
    for number in range(COUNT):
        (folder / f"{number}.txt").write_text(str(value))
    return lambda: FileDataset(folder, read="text", fields="data")


def one_of_the_files(folder: Path, value: int) -> Any:
    for number in range(COUNT):
        if value == 0 or number == 3:
            (folder / f"{number}.txt").write_text(str(value))
    return lambda: FileDataset(folder, read="text", fields="data")


def images(folder: Path, value: int) -> Any:
    for number in range(COUNT):
        path = folder / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(exist_ok=True)
        Image.new("L", (2, 2), value).save(path)
    return lambda: ImageFolder(folder, fields="image")


def hdf5(folder: Path, value: int) -> Any:
    for part in range(2):
        with h5py.File(folder / f"{part}.h5", "w") as file:
            file["x"] = np.full((COUNT // 2, 4), value)
    return lambda: HDF5Dataset(folder / "*.h5", "x")


def lmdb_(folder: Path, value: int) -> Any:
    with lmdb.open(str(folder), map_size=1 << 20) as database, database.begin(write=True) as transaction:
        for number in range(COUNT):
            transaction.put(b"%012d" % number, b"%d" % value)
    return lambda: LMDBDataset(folder)


def npy(folder: Path, value: int) -> Any:
    np.save(folder / "x.npy", np.full((COUNT, 4), value))
    return lambda: ArrayDataset(folder)


def tar(folder: Path, value: int) -> Any:
    for part in range(2):
        with tarfile.open(folder / f"{part}.tar", "w") as archive:
            for number in range(COUNT // 2):
                info = tarfile.TarInfo(f"{number:06d}.txt")
                info.size = 1
                archive.addfile(info, io.BytesIO(b"%d" % value))
    return lambda: TarDataset(str(folder / "*.tar"), fields="txt", cache=False)


def parquet(folder: Path, value: int) -> Any:
    for part in range(2):
        pq.write_table(pa.table({"x": [value] * (COUNT // 2)}), folder / f"{part}.parquet")
    return lambda: ParquetDataset(folder, "x")


WRITERS: list[Write] = [files, one_of_the_files, images, hdf5, lmdb_, npy, tar, parquet]


def rewritten(write: Write, folder: Path, value: int) -> None:
    """Write other files with the old modification times, as `cp -p` and `rsync -t` do."""
    before = {path: path.stat() for path in folder.rglob("*")}
    write(folder, value)
    for path, was in before.items():
        now = path.stat()
        while (now.st_ctime_ns, now.st_ino) == (was.st_ctime_ns, was.st_ino):  # file system clocks are coarse
            os.utime(path)
            now = path.stat()
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def values(dataset: Any) -> list[Any]:
    return [np.asarray(sample["x"] if isinstance(sample, dict) else sample).tolist() for sample in dataset]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("where", ["disk", "memory"])
def test_a_changed_file_is_detected(write: Write, where: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    open_ = write(folder, 0)
    options: dict[str, Any] = {"disk": tmp_path / "cache"} if where == "disk" else {"memory": "1MB"}
    cached = CachedDataset(open_(), **options)
    before = values(cached)
    assert values(cached) == before
    assert cached.stats()["hits"] == COUNT
    if where == "disk":
        cached.close()
        cached.dataset.close()
        cached = CachedDataset(open_(), **options)
        assert values(cached) == before
        assert cached.stats()["hits"] == COUNT, "unchanged files stay cached"
    cached.close()
    cached.dataset.close()
    rewritten(write, folder, 1)
    expected = values(open_())
    assert expected != before
    if where == "memory":
        cached.dataset = open_()
        with pytest.warns(PerformanceWarning):
            cached.set_epoch(1)
    else:
        cached = CachedDataset(open_(), **options)
        with pytest.warns(PerformanceWarning):
            assert values(cached) == expected
    assert values(cached) == expected
    cached.close()
    cached.dataset.close()


@pytest.mark.parametrize(("where", "engine"), [("memory", "thread"), ("both", "process")])
def test_persistent_workers_switch_to_the_new_cache(where: str, engine: EngineName, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    room: dict[str, Any] = {"memory": "1MB"} | ({"disk": tmp_path / "cache"} if where == "both" else {})
    cached = CachedDataset(files(folder, 0)(), **room)
    loader = feedline.Loader(cached, 2, workers=2, engine=engine, persistent=True)
    for value in (0, 1, 2):
        if value:
            rewritten(files, folder, value)
            with pytest.warns(PerformanceWarning):
                assert list(loader) == [[str(value)] * 2] * 3
        else:
            assert list(loader) == [["0"] * 2] * 3
        assert list(loader) == [[str(value)] * 2] * 3
        stats = cached.stats()
        assert stats["misses"] == stats["hits"] == (value + 1) * COUNT, "workers use the new cache, instead of none"
    loader.close()
    cached.close()


def test_other_database_keys_change_the_fingerprint(tmp_path: Path) -> None:
    lmdb_(tmp_path, 0)
    keys = (None, [b"%012d" % 0], [b"%012d" % 1])
    assert len({fingerprint(LMDBDataset(tmp_path, keys=one)) for one in keys}) == 3
