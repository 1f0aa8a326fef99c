import os
from pathlib import Path

import pytest

from feedline.datasets.storage.blob import LocalBlob
from feedline.errors import SourceChanged, SourceError


def test_ranges(tmp_path: Path) -> None:
    file = tmp_path / "ä b.bin"
    file.write_bytes(b"0123456789")
    blob = LocalBlob(str(file))
    assert (blob.size, blob.read(2, 5), blob.read(0, 10), blob.read(4, 4)) == (10, b"234", b"0123456789", b"")
    assert "10 bytes" in repr(blob)
    blob.hint(0, 100)
    blob.close()
    blob.close()


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.tar cannot be opened: No such file"):
        LocalBlob(str(tmp_path / "none.tar"))
    with pytest.raises(SourceError, match="not a file"):
        LocalBlob(str(tmp_path))


def test_a_file_that_is_truncated_while_it_is_open(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"0123456789")
    blob = LocalBlob(str(file))
    blob.check()
    os.truncate(file, 4)
    with pytest.raises(SourceChanged, match=r"ends at byte 4, but had 10 bytes"):
        blob.read(2, 8)
    with pytest.raises(SourceChanged):
        blob.check()
    blob.close()


def test_a_dropped_blob_closes_its_file(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    before = len(os.listdir("/proc/self/fd"))
    blob = LocalBlob(str(tmp_path / "a"))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del blob
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_new_file_of_the_same_name_is_not_mixed_with_the_old_one(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(b"0123456789")
    blob = LocalBlob(str(file))
    file.rename(tmp_path / "old")
    file.write_bytes(b"abcdefghij")
    assert blob.read(0, 3) == b"012"
    blob.close()
