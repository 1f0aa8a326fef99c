"""Datasets that are named by a path: which fields are read, which files count, what is not a source."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import feedline
from feedline.datasets import ImageFolder
from feedline.errors import BadOption, FeedlineError, SourceError
from feedline.tools.write.inspection import inspect
from feedline.tools.write.opening import open_source
from tests.tools.write.stores import SINGLE, read

ARRAYS: dict[str, Any] = {"x": np.arange(20).reshape(10, 2), "y": np.arange(10), "mean": np.zeros(3)}


def foreign_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, value in {**ARRAYS, "group/z": np.arange(10.0), "odd": np.zeros(10, [("a", "i4")])}.items():
            file[name] = value


def foreign_folder(path: Path) -> None:
    path.mkdir()
    for name, value in ARRAYS.items():
        np.save(path / f"{name}.npy", value)
    (path / "broken.npy").write_bytes(b"not at all")


def foreign_tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for number in range(10):
            out = io.BytesIO()
            np.save(out, ARRAYS["x"][number])
            members = {"y.cls": b"%d" % number, "broken.npy": b"not at all", "x.npy": out.getvalue()}
            if number % 2:
                members["sometimes.txt"] = b"a"
            for name, data in members.items():
                info = tarfile.TarInfo(f"{number:03d}.{name}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


MAKERS: dict[str, Any] = {
    "a.h5": foreign_hdf5,
    "a.npz": lambda path: np.savez(path, **ARRAYS, objects=np.array([1, None], object)),
    "folder": foreign_folder,
    "a.tar": foreign_tar,
}


@pytest.mark.parametrize("name", MAKERS)
def test_fields_that_are_not_selected_may_be_unreadable(tmp_path: Path, name: str) -> None:
    MAKERS[name](tmp_path / name)
    fields = {"x": "x.npy", "y": "y.cls"} if name == "a.tar" else ["y", "x"]
    packed = feedline.pack(tmp_path / name, tmp_path / "out.lmdb", fields=fields, workers=0)
    samples = read(packed)
    assert [list(sample) for sample in samples] == [list(fields)] * 10
    assert [int(sample["y"]) for sample in samples] == list(range(10))
    assert np.array_equal([sample["x"] for sample in samples], ARRAYS["x"])
    for wrong in (None, ["nothing"]):
        with pytest.raises(FeedlineError, match="nothing" if wrong else None):
            feedline.pack(tmp_path / name, tmp_path / "all.h5", fields=wrong, workers=0)
    assert not (tmp_path / "all.h5").exists()


@pytest.mark.parametrize(
    ("format_", "is_sharded"), [("lmdb", False), ("npy", False), ("hdf5", True), ("tar", False), ("parquet", True)]
)
def test_fields_of_packed_stores_can_be_selected_and_renamed(tmp_path: Path, format_: str, is_sharded: bool) -> None:
    def packed(name: str, samples: Any) -> Path:
        options: dict[str, Any] = {"samples_per_shard": 2} if is_sharded else {}
        out = tmp_path / (name if is_sharded else f"{name}{SINGLE[format_]}")
        return Path(feedline.pack(samples, out, format=format_, workers=0, **options).path)

    dicts = packed("d", [{"image": np.zeros((2, 2), np.uint8), "label": number, "s": "a"} for number in range(5)])
    tuples = packed("t", [(np.zeros(2), number) for number in range(5)])
    cases: tuple[tuple[Path, Any, dict[str, object]], ...] = (
        (dicts, ["label"], {"label": 3}),
        (dicts, {"n": "label", "s": "s"}, {"n": 3, "s": "a"}),
        (tuples, ["1"], {"1": 3}),
        (tuples, {"n": "1"}, {"n": 3}),
    )
    for number, (source, fields, expected) in enumerate(cases):
        assert read(feedline.pack(source, tmp_path / f"{number}.lmdb", fields=fields, workers=0))[3] == expected
    with pytest.raises(BadOption, match=r"has no field 'nothing', only the fields 'image', 'label', 's'"):
        feedline.pack(dicts, tmp_path / "no.lmdb", fields=["nothing"], workers=0)


@pytest.mark.parametrize(("pattern", "ending"), [("s-{0..1}", ".tar"), ("s-*", ".tar.gz")])
def test_shards_of_a_pattern_are_part_of_the_fingerprint(tmp_path: Path, pattern: str, ending: str) -> None:
    foreign_tar(tmp_path / "plain.tar")
    data = (tmp_path / "plain.tar").read_bytes()
    for number in range(2):
        (tmp_path / f"s-{number}{ending}").write_bytes(gzip.compress(data) if ending == ".tar.gz" else data)
    source = f"{tmp_path}/{pattern}{ending}"
    with open_source(source) as before:
        assert [file.name for file in before.files] == [f"s-0{ending}", f"s-1{ending}"]
    os.utime(tmp_path / f"s-1{ending}", ns=(1, 1))
    with open_source(source) as after:
        assert before.text != after.text


def test_rejects_paths_that_are_not_sources(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").touch()
    with pytest.raises(SourceError, match="looks like an empty file"):
        open_source(str(tmp_path / "a.xyz"))
    (tmp_path / "a:b").mkdir()
    (tmp_path / "a:b" / "x.bin").touch()
    with open_source(str(tmp_path / "a:b")) as opened:
        assert opened.fields == ("data", "path")
        assert list(opened.dataset) == [{"data": b"", "path": "x.bin"}], "not a module, although its name has a colon"


# -- folders of files -------------------------------------------------------------------------------------------------


def test_folders_of_files(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    for name in ("cat/1.jpg", "cat/deep/2.PNG", "dög/3.jpeg", "dög/notes.txt", "beside.png"):
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_bytes(name.encode())
    with open_source(str(photos)) as opened:
        assert (opened.fields, opened.metadata) == (("image", "label"), {"classes": ["cat", "dög"]})
        pairs = [(sample["image"], sample["label"]) for sample in opened.dataset]
        assert pairs == list(ImageFolder(photos, decode="bytes", cache=False))
        assert [sample["path"] for sample in opened.dataset] == ["cat/1.jpg", "cat/deep/2.PNG", "dög/3.jpeg"]
    packed = feedline.pack(photos, tmp_path / "out.lmdb", workers=0)
    assert (packed.count, packed.left_out, inspect(str(photos))["left out"]) == (3, 2, 2)
    with open_source(str(photos / "cat" / "deep")) as opened:
        assert (opened.fields, opened.metadata) == (("image", "path"), {})
        assert list(opened.dataset) == [{"image": b"cat/deep/2.PNG", "path": "2.PNG"}]
    (photos / "empty").mkdir()
    with pytest.raises(SourceError, match=r"of 3 classes in .* 'empty'"):
        feedline.pack(photos, tmp_path / "no.lmdb", workers=0)
