"""A listing comes from the cache if, and only if, nothing has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedline.datasets.formats.files import listing
from feedline.datasets.formats.files.listing import Endings, list_files, scan
from feedline.errors import BadOption, DataWarning, SourceError

JPG = (".jpg",)
LONG_AGO_NS = 1_600_000_000_000_000_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    for name in ("a/1.jpg", "a/2.jpg", "b/deep/3.jpg", "b/4.txt"):
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    age(folder)
    return folder


def age(folder: Path) -> None:
    """Backdate all directories: a directory that has just changed is never taken from a cache."""
    for path, _, _ in os.walk(folder):
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    done: list[int] = []

    def counted(*arguments: Any) -> Any:
        done.append(1)
        return scan(*arguments)  # the real one

    monkeypatch.setattr(listing, "scan", counted)
    return done


def paths(root: Path, cache: Any, endings: Endings = JPG) -> list[str]:
    found = list_files(str(root), endings, cache)
    assert sum(found.counts) == len(found)
    return list(found.paths.each(range(len(found))))


def test_a_listing_is_used_again(root: Path, tmp_path: Path, scans: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the folder is given by another path."""
    monkeypatch.chdir(tmp_path)
    for path in (root, root, Path("root")):
        assert paths(path, tmp_path / "cache") == ["a/1.jpg", "a/2.jpg", "b/deep/3.jpg"]
    assert len(scans) == 1
    assert list_files(str(root), JPG, tmp_path / "cache").directories == ["", "a", "b", "b/deep"]


def move_up(root: Path) -> None:
    (root / "b/deep/3.jpg").rename(root / "x.jpg")
    (root / "b/deep").rmdir()


def replace(root: Path) -> None:
    (root / "a").rename(root.parent / "gone")
    (root / "a").mkdir()


CHANGES: dict[str, Callable[[Path], Any]] = {
    "a file more": lambda root: (root / "b/deep/9.jpg").touch(),
    "a file less": lambda root: (root / "a/1.jpg").unlink(),
    "a file renamed": lambda root: (root / "a/1.jpg").rename(root / "a/7.jpg"),
    "a directory more": lambda root: (root / "c").mkdir(),
    "a directory less": move_up,
    "a directory replaced": replace,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_change_is_detected(root: Path, tmp_path: Path, scans: list[int], change: Callable[[Path], Any]) -> None:
    paths(root, tmp_path / "cache")
    change(root)
    assert paths(root, tmp_path / "cache") == paths(root, False)
    assert len(scans) == 3


def test_a_directory_replaced_by_one_of_the_same_age_is_detected(root: Path, tmp_path: Path, scans: list[int]) -> None:
    paths(root, tmp_path / "cache")
    (root / "a").rename(tmp_path / "old")
    (root / "a").mkdir()
    (root / "a" / "other.jpg").touch()
    age(root)
    assert paths(root, tmp_path / "cache") == ["a/other.jpg", "b/deep/3.jpg"]


def test_a_directory_changed_just_before_it_was_listed_is_listed_again(
    root: Path, tmp_path: Path, scans: list[int]
) -> None:
    """A later change could have the same timestamp."""
    (root / "a/0.jpg").touch()
    for _ in range(2):
        assert paths(root, tmp_path / "cache")[0] == "a/0.jpg"
    assert len(scans) == 2
    age(root)
    paths(root, tmp_path / "cache")
    paths(root, tmp_path / "cache")
    assert len(scans) == 3


def test_other_options_need_another_listing(root: Path, tmp_path: Path, scans: list[int]) -> None:
    assert len(paths(root, tmp_path / "cache")) == 3
    assert len(paths(root, tmp_path / "cache", None)) == 4
    assert len(paths(root, tmp_path / "cache", (".txt",))) == 1
    assert len(paths(root, tmp_path / "cache")) == 3
    assert len(scans) == 3


def test_a_damaged_cache_file_is_rebuilt(root: Path, tmp_path: Path, scans: list[int]) -> None:
    expected = paths(root, tmp_path / "cache")
    (file,) = (tmp_path / "cache").glob("*.listing")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.warns(DataWarning, match="is made again"):
        assert paths(root, tmp_path / "cache") == expected
    assert paths(root, tmp_path / "cache") == expected
    assert len(scans) == 2
    assert list((tmp_path / "cache").glob("*.listing")) == [file]


def test_listings_of_small_folders_are_not_stored_in_the_users_cache(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scans: list[int]
) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "home"))
    paths(root, True)
    assert not (tmp_path / "home").exists()
    monkeypatch.setattr(listing, "_WORTH_KEEPING", 3)
    paths(root, True)
    paths(root, True)
    assert len(scans) == 2
    assert len(list((tmp_path / "home").glob("*.listing"))) == 1
    assert len(paths(root, False)) == 3
    assert len(scans) == 3


def test_rejects_paths_that_are_not_folders(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="does not exist"):
        paths(tmp_path / "nothing", False)
    with pytest.raises(SourceError, match="not a folder"):
        paths(root / "a/1.jpg", False)
    with pytest.raises(BadOption, match="cache=3"):
        paths(root, 3)
