from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.packing.writers.journal import JournaledFile, roll_back

writes = st.lists(st.tuples(st.integers(0, 20_000), st.binary(min_size=1, max_size=9_000)), max_size=12)


@settings(max_examples=60, deadline=None)
@given(before=st.binary(max_size=20_000), changes=writes, cut=st.integers(0, 30_000))
def test_every_change_is_taken_back(
    tmp_path_factory: pytest.TempPathFactory, before: bytes, changes: list[tuple[int, bytes]], cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    path, journal = folder / "file", folder / "journal"
    path.write_bytes(before)
    file = JournaledFile(path, journal)
    for place, data in changes:
        file.seek(place)
        file.write(memoryview(data))
    if changes and cut < 20_000:
        file.truncate(cut)
    file.check()
    file.close()
    roll_back(path, journal, len(before))
    assert path.read_bytes() == before
    roll_back(path, journal, len(before))  # interrupted, it is repeated
    assert path.read_bytes() == before


def test_an_entry_that_is_cut_off_saved_nothing_that_was_changed(tmp_path: Path) -> None:
    path, journal = tmp_path / "file", tmp_path / "journal"
    path.write_bytes(b"a" * 10_000)
    file = JournaledFile(path, journal)
    file.seek(0)
    file.write(memoryview(b"b" * 10))
    file.close()
    with open(journal, "ab") as more:
        more.write(b"half of an entry that is far too short")
    roll_back(path, journal, 10_000)
    assert path.read_bytes() == b"a" * 10_000


def test_what_is_appended_needs_no_journal(tmp_path: Path) -> None:
    path, journal = tmp_path / "file", tmp_path / "journal"
    path.write_bytes(b"a" * 100)
    file = JournaledFile(path, journal)
    file.seek(0, os.SEEK_END)
    file.write(memoryview(b"b" * 10))
    file.close()
    assert not journal.exists()
    roll_back(path, journal, 100)
    assert path.read_bytes() == b"a" * 100


def test_errors_are_raised_when_asked_not_before(tmp_path: Path) -> None:
    """h5py does not survive an exception in these methods."""
    file = JournaledFile(tmp_path / "file", tmp_path / "journal")
    os.close(file._file)
    file._file = os.open(tmp_path / "file", os.O_RDONLY)
    assert file.write(memoryview(b"abc")) == 3
    assert file.truncate(1) == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.check()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.sync()
    file.close()
    file.close()
