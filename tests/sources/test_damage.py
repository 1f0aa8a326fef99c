"""Truncated, incomplete or changed stores give an error that says so, or the right samples, but never wrong ones."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401  (it keeps files open from its import on, which a test would seem to leave behind)
from PIL import Image

import feedline
from feedline.datasets import FileDataset, HDF5Dataset, ImageFolder, ParquetDataset, TarDataset
from feedline.errors import FeedlineError, SourceError
from feedline.testing.source import assert_same
from tests.sources.stores import FORMATS, NAMES, TAR_FIELDS, Original, close, packed

pytestmark = pytest.mark.sample(4)

COUNT = 120
SINGLE = {"npy": "npy/vector.npy", "hdf5": "all.h5", "lmdb": "all.lmdb", "tar": "all.tar", "parquet": "all.parquet"}
SHARDED = {"hdf5 shards": "hdf5", "tar shards": "tar", "parquet shards": "parquet"}

RIGHT, REFUSED, WRONG = 0, 3, 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return packed(tmp_path_factory.mktemp("whole"), COUNT)


@pytest.fixture
def stores(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "stores"))


def read_all(make: Callable[[], Any], samples: list[dict[str, Any]], *, workers: int) -> int:
    """Read a dataset, and return whether it was right, rejected with a feedline error, or wrong."""
    try:
        dataset = make()
        loader = feedline.Loader(dataset, 16, workers=workers)
        found = list(loader)
    except FeedlineError:
        return REFUSED
    expected = list(feedline.Loader(samples, 16))
    for batch, right in zip(found, expected, strict=False):
        for name in NAMES:
            if not np.array_equal(batch[name], right[name]):
                return WRONG
    return RIGHT if len(found) == len(expected) else WRONG


def in_child(act: Callable[[], int]) -> int:
    """Call a function in a forked process, which may be killed if a file shrinks under a memory map."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = act()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.slow
@pytest.mark.parametrize("format_", SINGLE)
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_truncated_file_never_gives_wrong_samples(whole: Path, stores: Path, format_: str, workers: int) -> None:
    path = stores / SINGLE[format_]
    size = path.stat().st_size
    samples = list(Original(COUNT))
    parts = (0.0, 0.01, 0.3, 0.6, 0.9, 0.999) if workers == 0 else (0.5,)
    for part in parts:
        os.truncate(path, int(size * part))
        outcome = in_child(
            functools.partial(read_all, functools.partial(FORMATS[format_], stores), samples, workers=workers)
        )
        assert outcome in (REFUSED, RIGHT), f"{int(size * part)} of {size} bytes: {outcome} (-{signal.SIGBUS}: SIGBUS)"
        if part <= 0.6:
            assert outcome == REFUSED
        shutil.copyfile(whole / SINGLE[format_], path)


@pytest.mark.parametrize("format_", SHARDED)
def test_the_error_names_a_missing_shard(stores: Path, format_: str) -> None:
    paths = sorted((stores / SHARDED[format_]).glob("shard-*"))
    gone = paths[1]
    options = {"fields": TAR_FIELDS, "cache": stores / "indices"} if format_ == "tar shards" else {}
    kind: Any = {"hdf5 shards": HDF5Dataset, "tar shards": TarDataset, "parquet shards": ParquetDataset}[format_]

    dataset = FORMATS[format_](stores)
    assert len(dataset) == COUNT
    gone.unlink()
    with pytest.raises((SourceError, FileNotFoundError), match=gone.name):
        list(feedline.Loader(dataset, 16))
    close(dataset)
    with pytest.raises((SourceError, FileNotFoundError), match=gone.name):
        list(feedline.Loader(kind([str(path) for path in paths], **options), 16))


@pytest.mark.parametrize("format_", SHARDED)
def test_the_error_names_a_truncated_shard(stores: Path, format_: str) -> None:
    path = sorted((stores / SHARDED[format_]).glob("shard-*"))[1]
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(SourceError, match=path.name):
        list(feedline.Loader(FORMATS[format_](stores), 16))


def replace_by_another(stores: Path, format_: str, count: int) -> None:
    """Replace a store with one of other samples, by renaming, as a careful program does."""
    name = {"npy": "npy", **SINGLE}[format_].partition("/")[0]
    other = stores / f"other-{name}"
    data = list(Other(count))
    feedline.pack(data, other, format=format_.partition(" ")[0], workers=0)
    target = stores / name
    if target.is_dir():
        for path in other.iterdir():
            os.replace(path, target / path.name)
    else:
        os.replace(other, target)


class Other(Original):
    """Samples of the same form with other values."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = super().__getitem__(index)
        return {**sample, "vector": sample["vector"] + 1, "label": sample["label"] + 5000}


@pytest.mark.parametrize("format_", SINGLE)
@pytest.mark.parametrize(
    "count", [COUNT // 2, *(pytest.param(one, marks=pytest.mark.slow) for one in (COUNT, COUNT * 2))]
)
def test_a_store_replaced_while_it_is_read_is_never_mixed(stores: Path, format_: str, count: int) -> None:
    """The result is all old, all new, or an error: never a mixture within a sample, never a wrong number of samples."""

    def act() -> int:
        dataset = FORMATS[format_](stores)
        old = [dataset[index] for index in range(10)]
        for found, expected in zip(old, Original(COUNT), strict=False):
            if not np.array_equal(found["vector"], expected["vector"]):
                return WRONG
        replace_by_another(stores, format_, count)
        try:
            loader = feedline.Loader(dataset, 16, workers=1)
            found = list(loader)
        except (FeedlineError, IndexError):
            return REFUSED
        vectors = np.concatenate([batch["vector"] for batch in found])
        labels = np.concatenate([batch["label"] for batch in found])
        for version in (Original(COUNT), Other(count)):
            right = list(version)[: len(vectors)]
            if len(right) == len(vectors) and all(
                np.array_equal(vector, sample["vector"]) and label == sample["label"]
                for vector, label, sample in zip(vectors, labels, right, strict=True)
            ):
                return RIGHT
        return WRONG

    assert in_child(act) in (RIGHT, REFUSED)


@pytest.mark.parametrize("format_", SINGLE)
def test_a_new_dataset_sees_the_replaced_store(stores: Path, format_: str) -> None:
    """Even if the first dataset left something in a disk cache."""
    first = FORMATS[format_](stores)
    assert first[0]["label"] == Original(COUNT)[0]["label"]
    close(first)
    replace_by_another(stores, format_, 50)
    second = FORMATS[format_](stores)
    assert len(second) == 50
    for index in (0, 49):
        assert_same(np.asarray(second[index]["vector"]), Other(50)[index]["vector"])
    close(second)


def test_files_added_or_removed_after_they_were_listed(tmp_path: Path) -> None:
    root, cache = tmp_path / "pictures", tmp_path / "cache"
    for name in ("a/1.png", "a/2.png", "b/1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (2, 2)).save(root / name)
    first = ImageFolder(root, cache=cache)
    assert len(first) == 3
    (root / "a" / "2.png").unlink()
    with pytest.raises(OSError, match=r"2\.png"):
        first[1]
    again = ImageFolder(root, cache=cache)
    assert [os.path.relpath(path, root) for path, _ in again.samples] == ["a/1.png", "b/1.png"]
    (root / "c").mkdir()
    Image.new("RGB", (2, 2)).save(root / "c" / "1.png")
    assert ImageFolder(root, cache=cache).classes == ["a", "b", "c"]
    assert len(FileDataset(root, cache=cache)) == 3


def test_errors_in_workers_have_the_same_message(stores: Path) -> None:
    path = stores / "all.parquet"
    dataset = FORMATS["parquet"](stores)
    assert len(dataset) == COUNT
    os.truncate(path, path.stat().st_size // 2)
    for workers in (0, 2):
        with pytest.raises(SourceError, match=r"all\.parquet"):
            list(feedline.Loader(dataset, 16, workers=workers))
    close(dataset)
