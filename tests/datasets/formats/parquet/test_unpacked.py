from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.datasets import ParquetDataset
from feedline.datasets.framework.store import StoredFile
from feedline.errors import DataWarning, SourceChanged
from feedline.testing.asserting import apart, assert_same
from tests.datasets.formats.parquet.tables import COUNT, TableContract, samples, table, write

GROUPS = 6


class TestUnpacked(TableContract):
    """All kinds of columns through Arrow files that the first of several processes writes."""

    source, name = ParquetDataset, "a.parquet"

    def make_source(self, **options: Any) -> ParquetDataset:
        return ParquetDataset(self.path, cache=self.path.parent / "unpacked", cache_bytes=1, **options)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write(tmp_path / "a.parquet", table())


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that collects the row groups decoded from Parquet files."""
    found: list[int] = []
    decode = ParquetDataset._decoded

    def noted(self: Any, file: Any, number: int, names: list[str]) -> Any:
        found.append(number)
        return decode(self, file, number, names)

    monkeypatch.setattr(ParquetDataset, "_decoded", noted)
    return found


def kept(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.arrow"))


def test_row_groups_are_decoded_once_for_all_datasets_with_the_same_folder(path: Path, decoded: list[int]) -> None:
    folder = path.parent / "unpacked"
    order = np.random.default_rng(0).permutation(COUNT).tolist()
    for _ in range(3):
        dataset = ParquetDataset(path, cache=folder, cache_bytes=0)
        assert_same([dataset[index] for index in order], [samples()[index] for index in order])
    assert sorted(decoded) == list(range(GROUPS))
    assert len(kept(folder)) == GROUPS


def test_mapped_row_groups_take_no_memory(path: Path) -> None:
    dataset = ParquetDataset(path, "image", cache=path.parent / "unpacked")
    dataset.__getitems__(range(COUNT))
    assert dataset._blocks.held == 8192 * GROUPS


def test_each_choice_of_columns_has_its_own_files(path: Path, decoded: list[int]) -> None:
    folder = path.parent / "unpacked"
    assert ParquetDataset(path, ("number", "name"), cache=folder)[0] == (0, "nämé 0")
    assert ParquetDataset(path, ("name", "number"), cache=folder)[0] == ("nämé 0", 0)
    assert decoded == [0]
    assert ParquetDataset(path, "small", cache=folder)[0] == 0
    assert decoded == [0, 0]


@pytest.mark.parametrize("damage", ["cut off", "a bit", "without a checksum"])
def test_damaged_files_are_unpacked_again(path: Path, decoded: list[int], damage: str) -> None:
    folder = path.parent / "unpacked"
    list(ParquetDataset(path, cache=folder))
    for file in kept(folder):
        content = file.read_bytes()
        middle = len(content) // 2
        damaged = {
            "cut off": content[:-9],
            "a bit": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
            "without a checksum": content[:-4],
        }
        os.unlink(file)  # other processes may have it mapped
        file.write_bytes(damaged[damage])
    decoded.clear()
    with pytest.warns(DataWarning, match="is made again"):
        assert_same(list(ParquetDataset(path, cache=folder)), samples())
    assert sorted(decoded) == list(range(GROUPS))


def test_a_changed_file_is_unpacked_again_and_the_old_copy_removed(path: Path) -> None:
    folder = path.parent / "unpacked"
    old = ParquetDataset(path, "number", cache=folder, cache_bytes=0)
    other = write(path.parent / "b.parquet", table())
    assert (old[0], ParquetDataset(other, "number", cache=folder)[0]) == (0, 0)
    changed = table(50).slice(10)
    write(path, changed)
    os.utime(path, ns=(1, 1))
    with pytest.raises(SourceChanged):
        old[COUNT - 1]
    new = ParquetDataset(path, "number", cache=folder)
    assert new[0] == 10
    assert len(kept(folder)) == 2, "one copy of the new file, one of the other file"


def test_forked_processes_together_verify_checksums_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = path.parent / "unpacked"
    list(ParquetDataset(path, cache=folder))
    sums: list[int] = []
    is_intact = StoredFile.is_intact

    def noted(self: StoredFile, content: Any) -> bool:
        sums.append(len(content))
        return is_intact(self, content)

    monkeypatch.setattr(StoredFile, "is_intact", noted)
    dataset = ParquetDataset(path, cache=folder, cache_bytes=0)
    assert len(dataset) == COUNT

    def first_half() -> int:
        for index in range(0, COUNT, 7):
            if index < COUNT // 2:
                assert dataset[index]["number"] == index
        return len(sums)

    assert apart(first_half) == 3
    assert not sums
    for _ in range(2):
        assert_same([dataset[index] for index in range(COUNT)], samples())
    assert len(sums) == GROUPS - 3
    other = pickle.loads(pickle.dumps(dataset))
    assert other[0]["number"] == 0
    assert len(sums) == GROUPS - 2


def test_a_file_damaged_after_its_check_is_checked_again(path: Path, decoded: list[int]) -> None:
    folder = path.parent / "unpacked"
    dataset = ParquetDataset(path, cache=folder, cache_bytes=0)
    assert_same(dataset[0], samples()[0])
    (file,) = kept(folder)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.with_suffix(".new").write_bytes(content)
    os.replace(file.with_suffix(".new"), file)
    dataset._blocks.clear()
    with pytest.warns(DataWarning, match="is made again"):
        assert_same(dataset[0], samples()[0])
    assert decoded == [0, 0]
