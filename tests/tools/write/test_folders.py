from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import feedline
from feedline.datasets import ImageFolder
from feedline.errors import SourceError
from feedline.tools.write.inspection import inspect
from feedline.tools.write.opening import called, open_path

pytestmark = pytest.mark.sample(5)


def open_folder(root: Path) -> tuple[Any, tuple[str, ...] | None, dict[str, Any]]:
    opened = open_path(str(root))
    return opened.dataset, opened.fields, opened.metadata


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("cat/1.jpg", "cat/deep/2.PNG", "dög/3.jpeg", "dög/notes.txt"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "photos"


def test_pictures_in_folders_have_labels(photos: Path) -> None:
    files, fields, metadata = open_folder(photos)
    assert (fields, metadata) == (("image", "label"), {"classes": ["cat", "dög"]})
    expected = ImageFolder(photos, decode="bytes", cache=False)
    assert [(sample["image"], sample["label"]) for sample in files] == list(expected)
    assert [sample["path"] for sample in files] == ["cat/1.jpg", "cat/deep/2.PNG", "dög/3.jpeg"]


def test_pictures_in_one_folder_have_no_labels(photos: Path) -> None:
    files, fields, metadata = open_folder(photos / "cat" / "deep")
    assert (fields, metadata) == (("image", "path"), {})
    assert [dict(sample) for sample in files] == [{"image": b"cat/deep/2.PNG", "path": "2.PNG"}]


class Torchvision:
    """Lists its files as `torchvision.datasets.ImageFolder` does."""

    def __init__(self) -> None:
        self.samples = [("photos/a.jpg", 0), ("photos/b.jpg", 1)]


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        (type("Files", (), {"path_of": lambda self, number: f"root/{number}"})(), "sample 1 (root/1)"),
        (Torchvision(), "sample 1 (photos/b.jpg)"),
        ([1, 2], "sample 1"),
        (type("Odd", (), {"samples": [1, 2], "path_of": None})(), "sample 1"),
        (type("Short", (), {"samples": []})(), "sample 1"),
    ],
)
def test_names_of_samples_in_messages(dataset: Any, name: str) -> None:
    assert called(dataset, 1) == name


def test_files_left_out_of_a_folder_of_pictures_are_counted(photos: Path) -> None:
    (photos / "beside.png").touch()
    packed = feedline.pack(photos, photos.parent / "out.lmdb", workers=0)
    assert (packed.count, packed.left_out) == (3, 2)
    assert inspect(str(photos))["left out"] == 2


def test_files_left_out_of_a_folder_without_classes_are_counted(tmp_path: Path) -> None:
    folder = tmp_path / "flat"
    folder.mkdir()
    for name in ("a.png", "b.x", "c.x", "d.x", "e.y"):
        (folder / name).write_bytes(b"1")
    assert inspect(str(folder))["left out"] == 4
    (folder / "a.png").unlink()
    assert inspect(str(folder))["left out"] == 0, "all files are samples"


def test_rejects_classes_without_pictures(photos: Path) -> None:
    (photos / "empty").mkdir()
    with pytest.raises(SourceError, match=r"of 3 classes in .* 'empty'"):
        feedline.pack(photos, photos.parent / "out.lmdb", workers=0)
