"""A mapped file: its numbers, its size, and changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedline.datasets.storage.mapped_file import MappedFile
from feedline.errors import CorruptSource, SourceChanged, SourceError


def test_numbers(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(np.arange(10, dtype="<i4").tobytes())
    file = MappedFile(str(tmp_path / "x"))
    numbers = file.array(np.dtype("<i4"), 3, 8)
    assert numbers.tolist() == [2, 3, 4]
    for count, offset in ((11, 0), (1, 40), (-1, 0), (1 << 60, 0)):
        with pytest.raises(CorruptSource):
            file.array(np.dtype("<i4"), count, offset)
    file.close()
    file.close()
    assert numbers.tolist() == [2, 3, 4]  # the mapping outlives the file


def test_empty_and_missing_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    file = MappedFile(str(tmp_path / "x"))
    assert file.array(np.dtype("<i4"), 0).tolist() == []
    file.check()
    with pytest.raises(SourceError, match="nothing"):
        MappedFile(str(tmp_path / "nothing"))


def test_changes_are_detected(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(8))
    file = MappedFile(str(tmp_path / "x"))
    file.check()
    with open(tmp_path / "x", "ab") as out:
        out.write(b"y")
    with pytest.raises(SourceChanged, match="had 8 bytes and now has 9"):
        file.check()
