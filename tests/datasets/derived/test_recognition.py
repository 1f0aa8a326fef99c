"""Recognition of the format of a path."""

from __future__ import annotations

from pathlib import Path

import pytest

import feedline
from feedline.datasets.derived.recognition import recognise
from feedline.errors import SourceError
from tests.datasets.stores import MAKERS


@pytest.mark.parametrize(
    ("names", "format_", "count"),
    [
        (("a.npy", "b.npy"), "npy", 0),
        (("deep/a.npy", "b.npy"), "files", 0),
        (("a.tar", "a.txt", "b.tar", "b.txt"), "stores", 2),
        (("a.tar", "b.tar", "read.me"), "stores", 2),
        (("a.tar", "b.tar", "readme.md", ".hidden", "_SUCCESS", "feedline.json"), "tar", 2),
        (("a.tar", "b.tar.gz"), "stores", 2),
        (("a.json", "b.csv"), "files", 0),
        (("train-images.gz", "test-images.gz"), "files", 0),
        (("data.mdb", "lock.mdb"), "lmdb", 0),
        (("a.jpg", "b.wav", "c.wav"), "pictures", 0),
    ],
)
def test_folders(tmp_path: Path, names: tuple[str, ...], format_: str, count: int) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = recognise(tmp_path)
    assert (found.format, len(found.files)) == (format_, count)


@pytest.mark.parametrize("names", [(), (".hidden",)])
def test_empty_folders(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        (tmp_path / name).touch()
    with pytest.raises(SourceError, match=r"is empty: there are no files in it( except hidden ones)?\.$"):
        recognise(tmp_path)


def test_a_store_among_many_other_files_does_not_decide_the_format(tmp_path: Path) -> None:
    folder = tmp_path / "sounds"
    folder.mkdir()
    for number in range(9):
        (folder / f"{number}.wav").write_bytes(b"sound")
    (folder / "Thumbs.db").write_bytes(b"of a file manager")
    assert feedline.pack(folder, tmp_path / "out.lmdb", workers=0).count == 10
    assert recognise(folder).format == "files"


@pytest.mark.parametrize("ending", MAKERS)
def test_a_file_is_recognised_by_its_content(tmp_path: Path, ending: str) -> None:
    MAKERS[ending](tmp_path / f"a{ending}", 0)
    expected = recognise(tmp_path / f"a{ending}")
    (tmp_path / f"a{ending}").rename(tmp_path / "a.dat")
    found = recognise(tmp_path / "a.dat")
    assert (found.format, found.options()) == (expected.format, expected.options())
