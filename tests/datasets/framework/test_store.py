"""What is kept is as it was written and about what it says, or counts as missing."""

from __future__ import annotations

import os
import random
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.datasets.framework import store
from feedline.datasets.framework.store import (
    BLOCK_BYTES,
    MARK,
    Entry,
    StoredFile,
    cache_home,
    check_own,
    checked_cache,
    read_stored,
    stored_bytes,
    write_stored,
)
from feedline.errors import BadOption, DataWarning, PerformanceWarning
from feedline.system.files import write_durably
from tests.tools.write.stores import in_child

DATA = random.Random(0).randbytes(3 * BLOCK_BYTES + 5)
SIZES = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, len(DATA))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_content_written_in_pieces_is_read_back(tmp_path: Path, size: int, piece: int) -> None:
    path = tmp_path / "a"
    write_stored(path, (DATA[start : min(size, start + piece)] for start in range(0, size, piece)))
    assert read_stored(path) == DATA[:size]
    assert os.stat(path).st_size == stored_bytes(size)
    file = StoredFile.open(path)
    assert file is not None
    for start, stop in ((0, size // 2), (size // 3, size), (size, size), (max(0, size - 1), size)):
        assert file.read(start, stop) == DATA[start:stop]
    assert file.is_intact(DATA[:size])
    assert not file.is_intact(DATA[:size] + b"x")
    file.close()
    file.close()


def test_reads_detect_damage_in_their_blocks_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_stored(path, [DATA])
    file = StoredFile.open(path)
    assert file is not None
    with open(path, "r+b", buffering=0) as damaging:
        for place in (0, BLOCK_BYTES - 1, BLOCK_BYTES + 3, len(DATA) - 1):
            assert file.read(0, len(DATA)) == DATA
            damaging.seek(place)
            damaging.write(bytes([DATA[place] ^ 1]))
            for other in range(4):
                start, stop = other * BLOCK_BYTES, min(len(DATA), (other + 1) * BLOCK_BYTES)
                assert (file.read(start, stop) is None) == (other == place // BLOCK_BYTES)
            damaging.seek(place)
            damaging.write(DATA[place : place + 1])
        damaging.truncate(BLOCK_BYTES)
    assert file.read(BLOCK_BYTES, BLOCK_BYTES + 1) is None
    file.close()


@pytest.mark.parametrize("content", [b"", b"12345", DATA[: BLOCK_BYTES + 5]])
def test_any_damage_is_detected(tmp_path: Path, content: bytes) -> None:
    entry = Entry.at(tmp_path, "things", 1)
    entry.write([content])
    whole = entry.path.read_bytes()
    places = (
        range(len(whole)) if len(content) < 100 else [*range(0, len(content), 999), *range(len(content), len(whole))]
    )
    for place in places:
        for damaged in (whole[:place] + bytes([whole[place] ^ 64]) + whole[place + 1 :], whole[:place], whole + b"\0"):
            entry.path.write_bytes(damaged)
            assert read_stored(entry.path) is None


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    write_stored(tmp_path / "whole", [DATA])
    (tmp_path / "link").symlink_to(tmp_path / "whole")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(8 << 30)
    for name in ("link", "zeros", "folder", "pipe", "sparse", "missing"):
        assert read_stored(tmp_path / name) is None


def test_a_file_is_flushed_before_it_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[str]()
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else f"file of {os.fstat(handle).st_size}")
        fsync(handle)

    def noted_replace(source: Path, target: Path) -> None:
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_stored(tmp_path / "a", [DATA])
    write_durably(tmp_path / "b", b"b")
    assert calls == [f"file of {stored_bytes(len(DATA))}", "rename", "folder", "file of 1", "rename", "folder"]


def test_a_killed_writer_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_stored(path, [b"old"])
    found = set()
    for point in range(1, 10):
        if in_child(lambda: write_stored(path, [b"new"]), kill_at=point):
            break
        found.add(read_stored(path))
    assert found == {b"old", b"new"}


def test_an_entry_is_about_what_it_was_derived_from(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    entry = Entry.at(folder, "things", {"a": 1}, "first")
    assert entry.load(dict) is None
    for value in ({"x": np.arange(3)}, {"x": np.arange(2)}):
        entry.save(value)
        assert entry.load(lambda found: found["x"].tolist()) == value["x"].tolist()
    changed = Entry.at(folder, "things", {"a": 1}, "second")
    for other in (
        changed,
        Entry.at(folder, "things", {"a": 2}, "first"),
        Entry.at(folder, "others", {"a": 1}, "first"),
    ):
        assert other.load(dict) is None
    changed.save({})
    assert entry.load(dict) is None
    assert sorted(path.name for path in folder.iterdir()) == [MARK, entry.path.name], "the new one replaces the old one"
    os.rename(entry.path, (moved := Entry.at(folder, "things", 5)).path)
    assert moved.load(dict) is None, "a name is not trusted"
    assert changed.load(dict) is None


def test_parts_of_an_earlier_version_are_dropped(tmp_path: Path) -> None:
    folder = tmp_path / "[a]"
    other = Entry.at(folder, "things", "other", "1", part=0)
    for part in range(3):
        Entry.at(folder, "things", "data", "1", part=part).save(part)
    other.save(7)
    new = Entry.at(folder, "things", "data", "2", part=1)
    new.save(5)
    assert sorted(folder.glob("*.things")) == sorted([new.path, other.path])
    assert (new.load(int), other.load(int)) == (5, 7)


def test_damage_is_reported_and_a_value_that_does_not_fit_counts_as_missing(tmp_path: Path) -> None:
    entry = Entry.at(tmp_path, "things", 1)
    for value, make in ((3, len), ([1], dict), ({}, lambda found: found["x"])):
        entry.save(value)
        assert entry.load(make) is None
    entry.save(DATA)
    whole = entry.path.read_bytes()
    for damaged in (whole[:100] + b"damage" + whole[106:], whole[:-1], b""):
        entry.path.write_bytes(damaged)
        with pytest.warns(DataWarning, match="things"):
            assert entry.load(bytes) is None


def test_concurrent_writers_leave_one_whole_entry(tmp_path: Path) -> None:
    entry = Entry.at(tmp_path, "things", 1)
    seen: list[Any] = []

    def work(number: int) -> None:
        for _ in range(30):
            entry.save([number] * 1000)
            seen.append(entry.load(list))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(found) == 1000 and len(set(found)) == 1 for found in seen)
    assert sorted(tmp_path.iterdir()) == sorted([entry.path, tmp_path / MARK])


def test_where_entries_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "y"))
    monkeypatch.delenv("FEEDLINE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_home() == tmp_path / "y" / ".cache" / "feedline"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_home() == tmp_path / "x" / "feedline"
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path))
    assert cache_home() == tmp_path
    assert Entry.within(False, "things", 1) is None
    for cache, folder in ((True, tmp_path), (tmp_path / "z", tmp_path / "z")):
        found = Entry.within(cache, "things", 1)
        assert found is not None
        assert found.path.parent == folder
    with pytest.raises(BadOption, match=r"cache=0\.5"):
        Entry.within(0.5, "things", 1)  # type: ignore[arg-type]


def test_nothing_is_kept_among_other_files(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(BadOption, match=r"other files, such as 'thesis\.tex'.*new or empty"):
        checked_cache(tmp_path)
    with pytest.warns(PerformanceWarning, match=r"contains other files, such as 'thesis\.tex'"):
        Entry.at(tmp_path, "things", 1).save(1)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / MARK).touch()
    Entry.at(tmp_path / "own", "things", 1).save(1)
    check_own(tmp_path)
    os.unlink(tmp_path / "thesis.tex")
    os.unlink(tmp_path / MARK)
    check_own(tmp_path)  # a folder of feedline's own is in it


def test_leftovers_of_a_killed_process_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Entry.at(tmp_path, "things", 1).save(1)
    left, recent = tmp_path / ".1.things.0123456789abcdef.part", tmp_path / ".1.things.fedcba9876543210.part"
    for path in (left, recent):
        path.write_bytes(b"half")
    os.utime(left, (1, 1))
    monkeypatch.setattr(store, "_prepared", set())  # as in another process
    Entry.at(tmp_path, "things", 2).save(1)
    assert (left.exists(), recent.exists()) == (False, True)


@pytest.mark.parametrize("error", ["no folder", "a full disk"])
def test_a_folder_that_cannot_be_written_to_warns_once(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if error == "no folder":
        (tmp_path / "folder").touch()
    else:
        monkeypatch.setattr(os, "replace", full)
    entry = Entry.at(tmp_path / "folder", "things", 1)
    with pytest.warns(PerformanceWarning, match="cannot be kept in"):
        entry.save(1)
    entry.save(2)
    assert [path.name for path in (tmp_path / "folder").glob("*")] in ([], [MARK])


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
    entry = Entry.at(foreign, "things", 1)
    entry.save("planted")
    assert entry.load(str) == "planted"
    monkeypatch.delenv("FEEDLINE_SHARED_CACHE")
    assert entry.load(str) is None
    with pytest.raises(BadOption, match="foreign belongs to another user"):
        checked_cache(foreign)
    monkeypatch.setattr(store, "_prepared", set())
    with pytest.warns(PerformanceWarning, match="belongs to another user.*set FEEDLINE_SHARED_CACHE=1 if"):
        entry.save("own")


def test_the_entry_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry.at(tmp_path, "things", 1)
    entry.save("planted")
    give_away(entry.path, monkeypatch)
    assert entry.load(str) is None
