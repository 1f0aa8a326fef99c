from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets import ImageFolder
from feedline.datasets.files.labels import numbers_in
from feedline.datasets.opening import is_picture_name, recognise
from feedline.errors import BadOption, SourceError
from feedline.packing import opening as folders
from feedline.packing.inspection import inspect
from feedline.packing.opening import TableFiles, called, open_table, unused_in

pytestmark = pytest.mark.sample(5)


def open_folder(root: Path) -> tuple[Any, tuple[str, ...], dict[str, Any]]:
    return folders.open_folder(recognise(root))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat/1.jpg", "cat/deep/2.PNG", "dög/3.jpeg", "dög/notes.txt"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "photos"


def test_pictures_in_folders(photos: Path) -> None:
    files, fields, facts = open_folder(photos)
    assert (fields, facts) == (("image", "label"), {"classes": ["cat", "dög"]})
    expected = ImageFolder(photos, decode="bytes", cache=False)
    assert [(sample["image"], sample["label"]) for sample in files] == list(expected)
    assert [sample["path"] for sample in files] == ["cat/1.jpg", "cat/deep/2.PNG", "dög/3.jpeg"]


def test_pictures_without_folders(photos: Path) -> None:
    files, fields, facts = open_folder(photos / "cat" / "deep")
    assert (fields, facts) == (("image", "path"), {})
    assert [dict(sample) for sample in files] == [{"image": b"cat/deep/2.PNG", "path": "2.PNG"}]


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "x.bin").write_bytes(b"1")
    files, fields, _ = open_folder(tmp_path / "a")
    assert fields == ("data", "path")
    assert [sample["path"] for sample in files] == ["b/x.bin"]


def test_no_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        open_folder(tmp_path)


@pytest.mark.parametrize(("name", "is_one"), [("a.jpg", True), ("a.JPEG", True), ("jpg", False), ("a.txt", False)])
def test_names_of_pictures(name: str, is_one: bool) -> None:
    assert is_picture_name(name) == is_one


def table(tmp_path: Path, text: str, **options: Any) -> tuple[TableFiles, tuple[str, ...]]:
    path = tmp_path / "table.csv"
    path.write_bytes(text.encode())
    files, fields, _ = open_table(path, **{"root": None, "path_column": None, **options})
    return files, fields


def test_tables(photos: Path) -> None:
    text = '\ufefflabel,file,who,path,score\r\n3,photos/cat/1.jpg,"a,\nb",x,1\r\n4,photos/dög/3.jpeg,,y,2.5\r\n'
    files, fields = table(photos.parent, text)
    assert fields == ("image", "label", "who", "path", "score")
    assert files[0] == {
        "image": b"cat/1.jpg",
        "label": 3,
        "who": "a,\nb",
        "path": "photos/cat/1.jpg",
        "score": 1.0,
    }
    assert files.path_of(1).endswith("dög/3.jpeg")


def test_where_the_files_of_a_table_are(photos: Path) -> None:
    text = "name,other\ncat/1.jpg,dög/3.jpeg\n"
    with pytest.raises(BadOption, match=r"No column of .* names files.*--path-column.*--root"):
        table(photos.parent, text)
    files, _ = table(photos.parent, text, root=photos)
    assert files[0]["image"] == b"cat/1.jpg"
    files, _ = table(photos.parent, text, root=photos, path_column="other")
    assert files[0]["image"] == "dög/3.jpeg".encode()
    with pytest.raises(BadOption, match="--path-column nothing is no column"):
        table(photos.parent, text, path_column="nothing")


def test_a_file_that_a_table_names_is_missing(photos: Path) -> None:
    files, _ = table(photos.parent, "file\nphotos/cat/1.jpg\nphotos/none.jpg\n")
    with pytest.raises(SourceError, match=r"Sample 1, the file .*none.jpg, cannot be read"):
        files[1]


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"a,b\n1\n", b"a,b\n1,2,3\n", b"a,b\n", b""])
def test_tables_that_cannot_be_read(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "t.csv").write_bytes(data)
    with pytest.raises(SourceError):
        open_table(tmp_path / "t.csv", root=None, path_column=None)


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1", "-2"], [1, -2]),
        (["1", "2.5"], [1.0, 2.5]),
        (["1", "x"], ["1", "x"]),
        (["", "1"], ["", "1"]),
        (["nan", "1e3"], None),
    ],
)
def test_columns(texts: list[str], values: list[Any] | None) -> None:
    found = numbers_in(texts)
    assert found == values if values is not None else isinstance(found[0], float)


class Torchvision:
    """As `torchvision.datasets.ImageFolder` keeps its files."""

    def __init__(self) -> None:
        self.samples = [("photos/a.jpg", 0), ("photos/b.jpg", 1)]


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (TableFiles(Path("root"), ["a", "b"], "data", {}), "sample 1 (root/b)"),
        (Torchvision(), "sample 1 (photos/b.jpg)"),
        ([1, 2], "sample 1"),
        (type("Odd", (), {"samples": [1, 2], "path_of": None})(), "sample 1"),
        (type("Short", (), {"samples": []})(), "sample 1"),
    ],
)
def test_what_samples_are_called(dataset: Any, name: str) -> None:
    assert called(dataset, 1) == name


def test_what_a_folder_of_pictures_leaves_out(photos: Path) -> None:
    (photos / "beside.png").touch()
    (photos / ".hidden.txt").touch()
    fields = open_folder(photos)[1]
    unused = unused_in(photos, fields)
    assert unused.files == 2
    assert unused.notes == (
        "1 file (dög/notes.txt), not named as pictures are, but .txt",
        "1 file (beside.png), pictures that are beside the folders of classes, and so in none",
    )
    packed = feedline.pack(photos, photos.parent / "out.lmdb", workers=0)
    assert (packed.count, packed.unused) == (3, unused)
    assert inspect(str(photos))["left out"] == list(unused.notes)


def test_what_a_folder_of_pictures_without_classes_leaves_out(tmp_path: Path) -> None:
    folder = tmp_path / "flat"
    folder.mkdir()
    for name in ("a.png", "b.x", "c.x", "d.x", "e.y"):
        (folder / name).write_bytes(b"1")
    unused = unused_in(folder, open_folder(folder)[1])
    assert unused.notes == ("4 files (b.x, c.x, d.x and 1 more), not named as pictures are, but .x, .y",)
    (folder / "a.png").unlink()
    assert unused_in(folder, open_folder(folder)[1]).files == 0, "all files are samples"


def test_classes_without_pictures(photos: Path) -> None:
    (photos / "empty").mkdir()
    with pytest.raises(SourceError, match=r"no pictures .* in 'empty'\..*CSV file") as caught:
        feedline.pack(photos, photos.parent / "out.lmdb", workers=0)
    assert "extensions=" not in str(caught.value), "which pack does not have"
