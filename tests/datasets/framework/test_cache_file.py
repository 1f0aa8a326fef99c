"""Cache files are complete, or ignored."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.datasets import CachedDataset
from feedline.datasets.formats.parquet.mapped import Unpacked
from feedline.datasets.framework.cache_file import CacheFile, cache_home
from feedline.errors import BadOption, FeedlineWarning


def test_reads_what_was_written(tmp_path: Path) -> None:
    file = CacheFile(tmp_path / "deep" / "er", "things", {"a": 1})
    assert file.read() is None
    for value in ({"x": np.arange(3)}, {"x": np.arange(2)}):
        file.write(value)
        assert file.read()["x"].tolist() == value["x"].tolist()
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    assert CacheFile(tmp_path / "deep" / "er", "things", {"a": 2}).read() is None
    assert CacheFile(tmp_path / "deep" / "er", "others", {"a": 1}).read() is None


def test_any_damage_is_detected(tmp_path: Path) -> None:
    file = CacheFile(tmp_path, "things", 1)
    file.write([1, "two", b"three"])
    content = file.path.read_bytes()
    for place in range(len(content)):
        file.path.write_bytes(content[:place])
        assert file.read() is None
        file.path.write_bytes(content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :])
        assert file.read() is None
    file.path.write_bytes(content)
    assert file.read() == [1, "two", b"three"]


def test_a_file_under_the_name_of_another_is_ignored(tmp_path: Path) -> None:
    one, other = CacheFile(tmp_path, "things", 1), CacheFile(tmp_path, "things", 2)
    one.write("one")
    os.rename(one.path, other.path)
    assert other.read() is None


def test_concurrent_writers_leave_one_complete_file(tmp_path: Path) -> None:
    file = CacheFile(tmp_path, "things", 1)
    seen: list[Any] = []

    def work(number: int) -> None:
        for _ in range(30):
            file.write([number] * 1000)
            seen.append(file.read())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(found) == 1000 and len(set(found)) == 1 for found in seen)
    assert list(tmp_path.iterdir()) == [file.path]


def test_where_cache_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path))
    assert cache_home() == tmp_path
    found = CacheFile.at(True, "things", 1)
    assert found is not None
    assert found.path.parent == tmp_path
    monkeypatch.delenv("FEEDLINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_home() == tmp_path / "x" / "feedline"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "y"))
    assert cache_home() == tmp_path / "y" / ".cache" / "feedline"
    assert CacheFile.at(False, "things", 1) is None
    chosen = CacheFile.at(tmp_path / "z", "things", 1)
    assert chosen is not None
    assert chosen.path.parent == tmp_path / "z"
    with pytest.raises(BadOption, match=r"cache=0\.5"):
        CacheFile.at(0.5, "things", 1)  # type: ignore[arg-type]


def test_an_unwritable_folder_warns(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.warns(FeedlineWarning, match="cannot be written"):
        CacheFile(tmp_path / "file", "things", 1).write(1)


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a world-writable folder of another user."""
    folder = tmp_path / "foreign"
    folder.mkdir()
    give_away(folder, monkeypatch)
    return folder


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr("os.geteuid", lambda: 12345)


def test_the_folder_of_another_user_is_not_used(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDLINE_SHARED_CACHE", "1")
    file = CacheFile(foreign, "things", 1)
    file.write("planted")
    assert file.read() == "planted"
    monkeypatch.delenv("FEEDLINE_SHARED_CACHE")
    assert file.read() is None
    with pytest.warns(FeedlineWarning, match="belongs to another user; set FEEDLINE_SHARED_CACHE=1 if"):
        file.write("own")


def test_the_file_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CacheFile(tmp_path, "things", 1)
    file.write("planted")
    give_away(file.path, monkeypatch)
    assert file.read() is None


def test_sample_caches_reject_the_folder_of_another_user(foreign: Path) -> None:
    for make in (lambda: CachedDataset([1, 2], disk=foreign), lambda: Unpacked(foreign)):
        with pytest.raises(BadOption, match="foreign belongs to another user"):
            make()
