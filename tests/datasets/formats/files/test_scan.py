"""Files are found in torchvision's order, even with symbolic links."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.datasets.formats.files import listing as module
from feedline.datasets.formats.files.listing import Endings, scan
from feedline.errors import FeedlineWarning, SourceError
from tests.sampling import examples


@pytest.fixture(autouse=True, scope="module", params=["alone", "together"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """One thread throughout, or several from the start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Clock, "is_waiting", lambda clock: request.param == "together")
        yield


def touch(root: Path, *names: str) -> Path:
    for name in names:
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return root


def paths(root: Path, endings: Endings = None) -> list[str]:
    found = scan(str(root), endings)
    return [path.decode("utf-8", "surrogatepass") for directory in found for path in directory.paths()]


def reference(root: Path) -> list[str]:
    """Do what torchvision's make_dataset does, and list files outside of directories first."""
    found = sorted(entry.name for entry in os.scandir(root) if not entry.is_dir())
    for name in sorted(entry.name for entry in os.scandir(root) if entry.is_dir()):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            found += [os.path.relpath(os.path.join(folder, file), root) for file in sorted(files)]
    return found


names = st.text(st.characters(blacklist_characters="/\0", blacklist_categories=["Cs"]), min_size=1, max_size=3).filter(
    lambda name: name not in (".", "..")
)


@settings(max_examples=examples(25), deadline=None)
@given(tree=st.sets(st.lists(names, min_size=1, max_size=3).map(tuple), max_size=12))
def test_any_tree_is_listed_as_torchvision_does(
    tree: set[tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("tree")
    for parts in sorted(tree, key=len, reverse=True):
        file = root.joinpath(*parts)
        if not file.exists() and all(not above.is_file() for above in file.parents):
            touch(root, "/".join(parts))
    assert paths(root) == reference(root)


def test_names_with_newlines_and_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    for name in (b"\xff\xfe.jpg", b"a\nb.jpg", "日本.jpg".encode()):
        (tmp_path / "d" / os.fsdecode(name)).touch()
    found = paths(tmp_path)
    assert sorted(found) == sorted(reference(tmp_path))
    assert all((tmp_path / path).exists() for path in found)


def test_links_are_followed_but_not_in_cycles(tmp_path: Path) -> None:
    touch(tmp_path, "root/a/1.jpg", "other/2.jpg", "other/deep/3.jpg")
    root = tmp_path / "root"
    (root / "b").symlink_to(tmp_path / "other")
    (root / "a" / "up").symlink_to(root)
    (root / "a" / "self").symlink_to(root / "a")
    (tmp_path / "other" / "back").symlink_to(root / "a")
    (tmp_path / "other" / "deep" / "above").symlink_to(tmp_path)
    (root / "a" / "linked.jpg").symlink_to(tmp_path / "other" / "2.jpg")
    (root / "a" / "broken.jpg").symlink_to(tmp_path / "nowhere")
    (root / "a" / "round.jpg").symlink_to(root / "a" / "round.jpg")
    with pytest.warns(FeedlineWarning, match="such as 'b/back', which is 'a'. Their files are listed once"):
        found = paths(root)
    assert found == [*(f"a/{name}.jpg" for name in ("1", "broken", "linked", "round")), "b/2.jpg", "b/deep/3.jpg"]


def test_directories_with_links_to_each_other_are_listed_once(tmp_path: Path) -> None:
    directories = [tmp_path / f"{number:02}" for number in range(12)]
    for directory in directories:
        touch(directory, "file")
        for other in directories:
            if other != directory:
                (directory / other.name).symlink_to(other)
    with pytest.warns(FeedlineWarning, match="132 links"):
        assert paths(tmp_path) == [f"{directory.name}/file" for directory in directories]


def test_only_regular_files_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/1.jpg")
    os.mkfifo(tmp_path / "a" / "pipe.jpg")
    (tmp_path / "a" / "zero.jpg").symlink_to("/dev/zero")
    with closing(socket.socket(socket.AF_UNIX)) as listening:
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        listening.bind("a/socket.jpg")
        assert paths(tmp_path) == ["a/1.jpg"]


def test_the_error_names_a_directory_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a/1", "b/c/2")
    scandir = os.scandir

    def refuse(path: str) -> object:
        if path.endswith("c"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(SourceError, match=r"Permission denied.*b/c"):
        paths(tmp_path)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("feedline-scan")]
