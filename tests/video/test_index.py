from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("av")

from feedline.errors import CorruptSource, SourceChanged, SourceError
from feedline.video import index as module
from feedline.video.frame_table import scan as scan_file
from feedline.video.index import VideoIndex
from tests.video.files import encoded

NAMES = ("a.mp4", "b/c.mkv", "b/d.mp4")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "videos"
    (folder / "b").mkdir(parents=True)
    for name, data in zip(NAMES, (encoded(), encoded("matroska"), encoded(count=30)), strict=True):
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the names of scanned files."""
    names: list[str] = []
    real = scan_file

    def scan(path: Any) -> Any:
        names.append(os.path.basename(path))
        return real(path)

    monkeypatch.setattr(module, "scan", scan)
    return names


def counts(index: VideoIndex, root: Path) -> list[int]:
    return [len(index.table(number, str(root / name)).stamps) for number, name in enumerate(NAMES)]


def test_videos_are_scanned_once_also_if_their_folder_moves(root: Path, tmp_path: Path, scanned: list[str]) -> None:
    store = tmp_path / "deep" / "index"
    assert counts(VideoIndex(str(root), NAMES, store), root) == [50, 50, 30]
    assert sorted(scanned) == ["a.mp4", "c.mkv", "d.mp4"]
    assert counts(VideoIndex(str(root), NAMES, store), root) == [50, 50, 30]
    moved = root.rename(tmp_path / "elsewhere")
    assert counts(VideoIndex(str(moved), NAMES, store), moved) == [50, 50, 30]
    assert len(scanned) == 3


def test_a_changed_video_is_scanned_again(root: Path, tmp_path: Path, scanned: list[str]) -> None:
    index = VideoIndex(str(root), NAMES, tmp_path / "index")
    (root / NAMES[1]).write_bytes(encoded("matroska", count=20))
    with pytest.raises(SourceChanged, match=r"c\.mkv"):
        index.table(1, str(root / NAMES[1]))
    del scanned[:]
    assert counts(VideoIndex(str(root), NAMES, tmp_path / "index"), root) == [50, 20, 30]
    os.utime(root / NAMES[0], ns=(1, 1))
    assert counts(VideoIndex(str(root), NAMES, tmp_path / "index"), root) == [50, 20, 30]
    assert scanned == ["c.mkv", "a.mp4"]


def test_failures_are_raised_per_video_and_not_stored(root: Path, tmp_path: Path, scanned: list[str]) -> None:
    (root / NAMES[0]).write_bytes(encoded()[:5000])
    for _ in range(2):
        index = VideoIndex(str(root), NAMES, tmp_path / "index")
        with pytest.raises(CorruptSource, match=r"a\.mp4"):
            index.table(0, str(root / NAMES[0]))
        assert len(index.table(1, str(root / NAMES[1])).stamps) == 50
    assert scanned.count("a.mp4") == 2
    assert len(scanned) == 4
    with pytest.raises(SourceError, match=r"gone\.mp4"):
        VideoIndex(str(root), [*NAMES, "gone.mp4"], False)


def test_a_video_with_restored_size_and_time_is_scanned_again(
    root: Path, tmp_path: Path, scanned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(module, "_WORTH_STORING", 3)
    path = root / NAMES[1]
    before, content = path.stat(), path.read_bytes()
    for store, expected in ((True, 1), (root / ".index", 0)):  # copied videos keep the index that is copied with them
        VideoIndex(str(root), NAMES, store)
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        del scanned[:]
        VideoIndex(str(root), NAMES, store)
        assert len(scanned) == expected


def test_parts_of_a_folder_share_an_index(root: Path, tmp_path: Path, scanned: list[str]) -> None:
    store = tmp_path / "index"
    for _ in range(2):
        for names in (NAMES[:2], NAMES[2:]):  # such as training and validation
            VideoIndex(str(root), names, store)
    assert sorted(scanned) == ["a.mp4", "c.mkv", "d.mp4"]
    (root / NAMES[0]).unlink()
    (root / NAMES[1]).write_bytes(encoded("matroska", count=20))
    (file,) = store.glob("*.videos")
    size = file.stat().st_size
    VideoIndex(str(root), NAMES[1:], store)
    assert file.stat().st_size < size  # without the deleted video


def test_small_indices_are_not_stored_by_default(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))
    VideoIndex(str(root), NAMES, True)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(module, "_WORTH_STORING", 3)
    VideoIndex(str(root), NAMES, True)
    assert len(list((tmp_path / "cache").glob("*.videos"))) == 1
