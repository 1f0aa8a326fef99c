"""`pack` and `inspect` take a folder for the same."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import h5py
import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import zstandard

import feedline
from feedline.errors import BadOption
from feedline.packing.contents import look
from feedline.packing.recognition import folder_at

COUNT = 3


def tar(path: Path, number: int) -> None:
    out = io.BytesIO()
    mode: Any = "w" if path.suffix in (".tar", ".zst") else "w:gz"
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for key in range(COUNT):
            info = tarfile.TarInfo(f"key{number}{key}.cls")
            info.size = 1
            archive.addfile(info, io.BytesIO(b"%d" % key))
    data = out.getvalue()
    path.write_bytes(zstandard.compress(data) if path.suffix == ".zst" else data)


def hdf5(path: Path, number: int) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(COUNT)


MAKERS: dict[str, Any] = {
    ".tar": tar,
    ".tar.gz": tar,
    ".tgz": tar,
    ".TGZ": tar,
    ".tar.zst": tar,
    ".h5": hdf5,
    ".hdf5": hdf5,
    ".parquet": lambda path, number: pq.write_table(pa.table({"x": range(COUNT)}), path),
    ".arrow": lambda path, number: feather.write_feather(pa.table({"x": range(COUNT)}), str(path)),
}


@pytest.mark.parametrize("is_deep", [False, True])
@pytest.mark.parametrize("ending", MAKERS)
def test_shards_of_all_kinds(tmp_path: Path, ending: str, is_deep: bool) -> None:
    folder = tmp_path / "shards"
    for number in range(4):
        place = folder / str(number % 2) if is_deep else folder
        place.mkdir(parents=True, exist_ok=True)
        MAKERS[ending](place / f"s-{number}{ending}", number)
    (folder / "about.json").write_text("{}")
    packed = feedline.pack(folder, tmp_path / "out.lmdb", workers=0)
    contents = look(folder)
    assert (packed.count, contents.count) == (4 * COUNT, 4 * COUNT)
    assert "shards" in contents.kind
    assert packed.unused.files == 1
    assert any("about.json" in note for note in packed.unused.notes)
    assert "about.json" in contents.details["beside"]
    space: dict[str, Any] = {"feedline": feedline}
    exec(contents.line.replace("workers=4", "workers=0"), space)
    assert sum(len(next(iter(batch.values()))) for batch in space["loader"]) == 4 * COUNT
    space["loader"].dataset.close()


def environment(path: Path) -> None:
    with lmdb.open(str(path), subdir=False, lock=False) as opened, opened.begin(write=True) as transaction:
        transaction.put(b"a", b"1")


def test_stores_that_are_not_read_as_one_are_no_samples(tmp_path: Path) -> None:
    for name in ("npz", "lmdb", "mixed"):
        (tmp_path / name).mkdir()
    for number in range(2):
        np.savez(tmp_path / "npz" / f"{number}.npz", x=np.arange(3))
        environment(tmp_path / "lmdb" / f"{number}.lmdb")
    hdf5(tmp_path / "mixed" / "a.h5", 0)
    tar(tmp_path / "mixed" / "b.tar", 0)
    for name in ("npz", "lmdb", "mixed"):
        assert look(tmp_path / name).kind == "folder of different things"
        with pytest.raises(BadOption, match=r"not read as one dataset.* Pack one of them: "):
            feedline.pack(tmp_path / name, tmp_path / "out.lmdb", workers=0)
    np.savez(tmp_path / "lmdb" / "0.npz", x=np.arange(3))
    one = tmp_path / "one"
    one.mkdir()
    np.savez(one / "a.npz", x=np.arange(3))
    with pytest.raises(BadOption, match=r"a store, not a sample\. Pack one of them: .*one/a\.npz"):
        feedline.pack(one, tmp_path / "out.lmdb", workers=0)


def test_a_store_among_many_other_files_is_one_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "sounds"
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.wav").write_bytes(b"sound")
    (folder / "Thumbs.db").write_bytes(b"of a file manager")
    assert feedline.pack(folder, tmp_path / "out.lmdb", workers=0).count == 10
    assert look(folder).kind == "folder of files"


def test_precomputed_samples_are_packed(tmp_path: Path) -> None:
    feedline.precompute([{"x": number} for number in range(5)], tmp_path / "made", workers=0)
    packed = feedline.pack(tmp_path / "made", tmp_path / "out.h5", workers=0)
    assert (packed.count, look(tmp_path / "made").count) == (5, 5)
    with h5py.File(packed.path) as file:
        assert file["x"][:].tolist() == list(range(5))


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("a.npy", "b.npy"), "arrays"),
        (("deep/a.npy", "b.npy"), "files"),
        (("a.tar", "a.txt", "b.tar", "b.txt"), "stores"),
        (("a.tar", "b.tar", "read.me"), "stores"),
        (("a.tar", "b.tar", "readme.md", ".hidden", "_SUCCESS", "feedline.json"), "shards"),
        (("a.tar", "b.tar.gz"), "stores"),
        (("a.json", "b.csv"), "files"),
        (("train-images.gz", "test-images.gz"), "files"),
        (("data.mdb", "lock.mdb"), "environment"),
        ((".hidden",), "empty"),
    ],
)
def test_kinds(tmp_path: Path, names: tuple[str, ...], kind: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert folder_at(tmp_path).kind == kind
