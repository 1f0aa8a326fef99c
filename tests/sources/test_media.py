"""The same pipeline of images, sounds or videos over every source of them: the same batches, and damage is reported."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedline
from feedline import audio, images, video
from feedline.abc.memory import Placement
from feedline.datasets import (
    HDF5Dataset,
    ImageFolder,
    LMDBDataset,
    ParquetDataset,
    TarDataset,
)
from feedline.errors import CorruptSource
from feedline.images.medium import MediumPipeline
from feedline.loader.base import config_of
from tests.audio.sounds import encoded as encoded_sound
from tests.audio.sounds import sound
from tests.images.pictures import encoded, photo
from tests.video.files import encoded as encoded_video

COUNT = 8


@dataclass(frozen=True)
class Case:
    """A medium, with files and a pipeline that draws."""

    ending: str
    files: list[bytes]
    pipeline: MediumPipeline
    folder: Callable[..., Any]
    shape: tuple[int, ...]


CASES = [
    Case(
        "jpg",
        [encoded(photo(seed=number), quality=90) for number in range(COUNT)],
        images.Compose([images.RandomResizedCrop(32), images.HorizontalFlip(), images.Normalize()]),
        ImageFolder,
        (3, 32, 32),
    ),
    Case(
        "flac",
        [encoded_sound(np.roll(sound(1.0), 99 * number)) for number in range(COUNT)],
        audio.Compose([audio.RandomClip(0.25), audio.Resample(8000), audio.Mono()]),
        audio.AudioFolder,
        (1, 2000),
    ),
    Case(
        "mp4",
        [encoded_video(count=12 + 2 * number) for number in range(COUNT)],
        video.Compose(
            [video.RandomClip(4, stride=2), images.RandomResizedCrop(16), images.HorizontalFlip(), images.Normalize()],
            axes="CTHW",
        ),
        video.VideoFolder,
        (3, 4, 16, 16),
    ),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.ending)


def folder(path: Path, case: Case) -> Any:
    for number, data in enumerate(case.files):
        (path / "files" / "0").mkdir(parents=True, exist_ok=True)
        (path / f"files/0/{number}.{case.ending}").write_bytes(data)
    return case.folder(path / "files", transform=case.pipeline)


def shards(path: Path, case: Case) -> Any:
    with tarfile.open(path / "a.tar", "w") as archive:
        for number, data in enumerate(case.files):
            for name, content in ((f"{number}.{case.ending}", data), (f"{number}.cls", b"0")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return TarDataset(str(path / "a.tar"), (case.ending, "cls"), transform=case.pipeline, cache=False)


def shard_stream(path: Path, case: Case) -> Any:
    return shards(path, case).stream()


def parquet(path: Path, case: Case) -> Any:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"file": case.files, "label": [0] * COUNT}), path / "a.parquet")
    return ParquetDataset(path / "a.parquet", ("file", "label"), transform=case.pipeline)


def parquet_stream(path: Path, case: Case) -> Any:
    return parquet(path, case).stream()


def parquet_of_hugging_face(path: Path, case: Case) -> Any:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"bytes": data, "path": f"{number}.{case.ending}"} for number, data in enumerate(case.files)]
    pq.write_table(pa.table({"file": rows, "label": [0] * COUNT}), path / "b.parquet")
    return ParquetDataset(path / "b.parquet", ("file", "label"), transform=case.pipeline)


def lmdb_values(path: Path, case: Case) -> Any:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(path / "a.lmdb")) as database, database.begin(write=True) as transaction:
        for number, data in enumerate(case.files):
            transaction.put(b"%03d" % number, data)
    return LMDBDataset(path / "a.lmdb", transform=case.pipeline)


def hdf5(path: Path, case: Case) -> Any:
    h5py = pytest.importorskip("h5py")
    with h5py.File(path / "a.h5", "w") as file:
        values = file.create_dataset("file", (COUNT,), h5py.vlen_dtype(np.uint8))
        for number, data in enumerate(case.files):
            values[number] = np.frombuffer(data, np.uint8)
        file["label"] = np.zeros(COUNT, np.int64)
    return HDF5Dataset(path / "a.h5", ("file", "label"), transform=case.pipeline)


def hugging_face(path: Path, case: Case) -> Any:
    datasets = pytest.importorskip("datasets")
    rows = {"file": [{"bytes": data, "path": None} for data in case.files], "label": [0] * COUNT}
    struct = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    features = datasets.Features(file=struct, label=datasets.Value("int64"))
    return datasets.Dataset.from_dict(rows, features).with_transform(case.pipeline)


MAKERS = (
    folder,
    shards,
    shard_stream,
    parquet,
    parquet_stream,
    parquet_of_hugging_face,
    lmdb_values,
    hdf5,
    hugging_face,
)


# Any, throughout: loaders, and their batches in any form.
def values_of(batch: Any) -> Any:
    value = batch["file"] if isinstance(batch, dict) else batch[0] if isinstance(batch, (tuple, list)) else batch
    return np.asarray(value).copy()


def batches(loader: Any) -> list[Any]:
    return [values_of(batch) for batch in loader]


def check_equal(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("make", "case"),
    [
        pytest.param(make, case, marks=[] if (place + number) % len(CASES) == 0 else pytest.mark.slow)
        for place, make in enumerate(MAKERS)
        for number, case in enumerate(CASES)
    ],
    ids=lambda value: getattr(value, "ending", None) or value.__name__,
)
def test_every_source_gives_the_same_batches(make: Callable[..., Any], case: Case, tmp_path: Path) -> None:
    source = make(tmp_path, case)
    loader = feedline.Loader(source, 4, seed=3)
    if case.ending == "jpg":
        assert config_of(loader).placement is (Placement.DATASET if make is hugging_face else Placement.COLLATE)
    found = batches(loader)
    assert [one.shape for one in found] == [(4, *case.shape)] * 2
    assert found[0].dtype == np.float32
    by_hand = feedline.Loader(source, 4, seed=3, collate_fn=feedline.collate.drop_none())
    assert config_of(by_hand).placement is Placement.DATASET
    check_equal(batches(by_hand), found)
    if hasattr(source, "close"):
        source.close()


@each_case
def test_epochs_are_the_same_with_workers_and_after_resuming(case: Case, tmp_path: Path) -> None:
    dataset = folder(tmp_path, case)

    def loader(workers: int = 0, seed: int = 5) -> Any:
        return feedline.DataLoader(dataset, 3, shuffle=True, seed=seed, num_workers=workers)

    plain = loader()
    first, second = batches(plain), batches(plain)
    assert not np.array_equal(first[0], second[0])
    assert not np.array_equal(first[0], batches(loader(seed=6))[0])
    with_workers = loader(2)
    check_equal(batches(with_workers), first)
    check_equal(batches(with_workers), second)
    next(iter(begun := loader()))
    again = loader()
    again.load_state_dict(begun.state_dict())
    check_equal(batches(again), first[1:])


@each_case
def test_damaged_files_are_named_and_can_be_skipped(case: Case, tmp_path: Path) -> None:
    folder(tmp_path, case)
    for number, content in enumerate((b"", b"no medium", case.files[2][: len(case.files[2]) // 2])):
        (tmp_path / f"files/0/{number}.{case.ending}").write_bytes(content)
    dataset = case.folder(tmp_path / "files", transform=case.pipeline)
    with pytest.raises(CorruptSource, match=rf"[012]\.{case.ending}"):
        list(feedline.DataLoader(dataset, 2))
    loader = feedline.DataLoader(dataset, 2, on_error="skip")
    assert sum(len(labels) for _, labels in loader) == COUNT - 3


@each_case
def test_the_error_for_a_damaged_field_of_a_shard_names_the_sample(case: Case, tmp_path: Path) -> None:
    dataset = shards(tmp_path, case)

    def cut_off(name: str, data: bytes) -> Any:
        return data[: len(data) // 2] if name == f".{case.ending}" else None

    broken = TarDataset(dataset.shards, (case.ending, "cls"), decode=cut_off, transform=case.pipeline, cache=False)
    with pytest.raises(CorruptSource, match=r"cut off|damaged") as caught:
        list(feedline.Loader(broken, 4))
    assert any("sample" in note for note in caught.value.__notes__)
    broken.close()
