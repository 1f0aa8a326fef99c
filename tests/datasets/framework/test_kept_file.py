"""Kept files are as they were written, or count as missing."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

import pytest

from feedline.datasets.framework.kept_file import BLOCK_BYTES, KeptFile, keep, kept_bytes, read_kept
from feedline.system.files import write_durably
from tests.tools.packing.stores import in_child

DATA = random.Random(0).randbytes(3 * BLOCK_BYTES + 5)
SIZES = (0, 1, 1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, len(DATA))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("piece", [7, 1 << 12, 1 << 20])
def test_content_written_in_pieces_is_read_back(tmp_path: Path, size: int, piece: int) -> None:
    path = tmp_path / "a"
    keep(path, (DATA[start : min(size, start + piece)] for start in range(0, size, piece)))
    assert read_kept(path) == DATA[:size]
    assert os.stat(path).st_size == kept_bytes(size)
    assert os.listdir(tmp_path) == ["a"]
    file = KeptFile.open(path)
    assert file is not None
    for start, stop in ((0, size // 2), (size // 3, size), (size, size), (max(0, size - 1), size)):
        assert file.read(start, stop) == DATA[start:stop]
    assert file.is_intact(DATA[:size])
    assert not file.is_intact(DATA[:size] + b"x")
    file.close()
    file.close()


def test_reads_detect_damage_in_their_blocks_each_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    keep(path, [DATA])
    file = KeptFile.open(path)
    assert file is not None
    with open(path, "r+b") as damaging:
        for place in (0, BLOCK_BYTES - 1, BLOCK_BYTES + 3, len(DATA) - 1):
            assert file.read(0, len(DATA)) == DATA
            damaging.seek(place)
            damaging.write(bytes([DATA[place] ^ 1]))
            damaging.flush()
            assert file.read(0, len(DATA)) is None
            block = place // BLOCK_BYTES
            for other in range(4):
                start, stop = other * BLOCK_BYTES, min(len(DATA), (other + 1) * BLOCK_BYTES)
                assert (file.read(start, stop) is None) == (other == block)
            damaging.seek(place)
            damaging.write(DATA[place : place + 1])
            damaging.flush()
        damaging.truncate(BLOCK_BYTES)
    assert file.read(BLOCK_BYTES, BLOCK_BYTES + 1) is None
    file.close()


@pytest.mark.parametrize("size", [0, 5, BLOCK_BYTES + 5])
def test_any_change_is_detected(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a"
    keep(path, [DATA[:size]])
    content = path.read_bytes()
    places = range(len(content)) if size < 100 else [*range(0, size, 999), *range(size, len(content))]
    for place in places:
        path.write_bytes(content[:place] + bytes([content[place] ^ 64]) + content[place + 1 :])
        assert read_kept(path) is None
        path.write_bytes(content[:place])
        assert read_kept(path) is None
    for other in (content + b"\0", content + content[-4:], content * 2, bytes(len(content))):
        path.write_bytes(other)
        assert read_kept(path) is None
    path.write_bytes(content)
    assert read_kept(path) == DATA[:size]


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    keep(tmp_path / "whole", [DATA])
    (tmp_path / "link").symlink_to(tmp_path / "whole")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(8 << 30)
    for name in ("link", "zeros", "folder", "pipe", "sparse", "missing"):
        assert read_kept(tmp_path / name) is None


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
    keep(tmp_path / "a", [DATA])
    write_durably(tmp_path / "b", b"b")
    assert calls == [f"file of {kept_bytes(len(DATA))}", "rename", "folder", "file of 1", "rename", "folder"]


def test_a_killed_writer_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    path = tmp_path / "a"
    keep(path, [b"old"])
    found = set()
    for point in range(1, 10):
        if in_child(lambda: keep(path, [b"new"]), kill_at=point):
            break
        found.add(read_kept(path))
    assert found == {b"old", b"new"}


def test_a_failed_write_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> list[bytes]:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        keep(tmp_path / "a", (piece for _ in range(2) for piece in pieces()))
    assert os.listdir(tmp_path) == []
