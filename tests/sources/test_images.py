"""The same pipeline of `feedline.images` over every source of images."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch  # noqa: F401  (it keeps files open from its import on, which a test would seem to leave behind)

import feedline
from feedline import images
from feedline.abc.memory import Placement
from feedline.datasets import ArrayDataset, HDF5Dataset, ImageFolder, LMDBDataset, ParquetDataset, TarDataset
from feedline.loader.base import config_of
from tests.images.pictures import encoded, photo

COUNT = 8
FILES = [encoded(photo(seed=number), quality=90) for number in range(COUNT)]
PIPELINE = images.Compose([images.RandomResizedCrop(32), images.HorizontalFlip(), images.Normalize()])


def folder(path: Path) -> Any:
    (path / "0").mkdir()
    for number, data in enumerate(FILES):
        (path / f"0/{number}.jpg").write_bytes(data)
    return ImageFolder(path, transform=PIPELINE)


def shards(path: Path) -> Any:
    with tarfile.open(path / "a.tar", "w") as archive:
        for number, data in enumerate(FILES):
            for name, content in ((f"{number}.jpg", data), (f"{number}.cls", b"0")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return TarDataset(str(path / "a.tar"), ("jpg", "cls"), transform=PIPELINE, cache=False)


def shard_stream(path: Path) -> Any:
    return shards(path).stream()


def parquet(path: Path) -> Any:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"image": FILES, "label": [0] * COUNT}), path / "a.parquet")
    return ParquetDataset(path / "a.parquet", ("image", "label"), transform=PIPELINE)


def parquet_stream(path: Path) -> Any:
    return parquet(path).stream()


def parquet_of_hugging_face(path: Path) -> Any:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"bytes": data, "path": f"{number}.jpg"} for number, data in enumerate(FILES)]
    pq.write_table(pa.table({"image": rows, "label": [0] * COUNT}), path / "b.parquet")
    return ParquetDataset(path / "b.parquet", ("image", "label"), transform=PIPELINE)


def lmdb_values(path: Path) -> Any:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(path / "a.lmdb")) as database, database.begin(write=True) as transaction:
        for number, data in enumerate(FILES):
            transaction.put(b"%03d" % number, data)
    return LMDBDataset(path / "a.lmdb", transform=PIPELINE)


def hdf5(path: Path) -> Any:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "a.h5", "w") as file:
        values = file.create_dataset("image", (COUNT,), h5py.vlen_dtype(np.uint8))
        for number, data in enumerate(FILES):
            values[number] = np.frombuffer(data, np.uint8)
        file["label"] = np.zeros(COUNT, np.int64)
    return HDF5Dataset(path / "a.h5", ("image", "label"), transform=PIPELINE)


def hugging_face(path: Path) -> Any:
    datasets = pytest.importorskip("datasets")
    rows = {"image": [{"bytes": data, "path": None} for data in FILES], "label": [0] * COUNT}
    features = datasets.Features(image=datasets.Image(), label=datasets.Value("int64"))
    return datasets.Dataset.from_dict(rows, features).with_transform(PIPELINE)


# Any: batches of images, alone or with labels.
def images_of(loader: Any) -> Any:
    found = []
    for batch in loader:
        found.append(
            batch["image"] if isinstance(batch, dict) else batch[0] if isinstance(batch, (tuple, list)) else batch
        )
    return np.concatenate(found)


@pytest.mark.parametrize(
    "make",
    [
        folder,
        shards,
        shard_stream,
        parquet,
        parquet_stream,
        parquet_of_hugging_face,
        lmdb_values,
        hdf5,
        hugging_face,
    ],
)
def test_every_source_gives_the_same_images(make: Callable[[Path], Any], tmp_path: Path) -> None:
    source = make(tmp_path)
    loader = feedline.Loader(source, 4, seed=3)
    assert config_of(loader).placement is (Placement.DATASET if make is hugging_face else Placement.COLLATE)
    batches = images_of(loader)
    assert batches.shape == (COUNT, 3, 32, 32)
    assert batches.dtype == np.float32
    by_hand = feedline.Loader(source, 4, seed=3, collate_fn=feedline.collate.drop_none())
    assert config_of(by_hand).placement is Placement.DATASET
    assert np.array_equal(images_of(by_hand), batches)
    if hasattr(source, "close"):
        source.close()


def test_arrays_of_pixels() -> None:
    pixels = np.stack([photo(seed=number) for number in range(COUNT)])
    dataset = ArrayDataset((pixels, np.arange(COUNT)), transform=PIPELINE)
    (batch, labels), *_ = feedline.Loader(dataset, COUNT)
    assert batch.shape == (COUNT, 3, 32, 32)
    assert labels.tolist() == list(range(COUNT))


def test_the_error_for_a_damaged_image_names_the_sample(tmp_path: Path) -> None:
    dataset = shards(tmp_path)
    broken = TarDataset(dataset.shards, ("jpg", "cls"), decode=cut_off, transform=PIPELINE, cache=False)
    with pytest.raises(OSError, match=r"cut off|damaged") as caught:
        list(feedline.Loader(broken, 4))
    assert any("sample" in note for note in caught.value.__notes__)
    broken.close()


def cut_off(name: str, data: bytes) -> Any:
    return data[:-300] if name == ".jpg" else None
