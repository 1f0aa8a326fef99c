"""Unpacked copies of compressed files: every line is in them, or they are made again."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from feedline.datasets import JSONLines
from feedline.datasets.formats.lines import index
from feedline.datasets.formats.lines import source as source_module
from feedline.datasets.framework.store import BLOCK_BYTES, read_stored, stored_bytes
from feedline.errors import BadOption, DataWarning, PerformanceWarning, SourceChanged, SourceError
from tests.datasets.formats.lines.writing import lines_of, touch_later, write

COUNT = 1000
LINES = lines_of({"number": number, "text": "x" * 90} for number in range(COUNT))


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "MOST_UNIT", 1000)
    for module in (index, source_module):
        monkeypatch.setattr(module, "PACKED_BYTES", 500)
    monkeypatch.setattr(source_module, "CACHE_BYTES", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(LINES))
    return path


def opened(path: Path) -> JSONLines:
    return JSONLines(path, "number", cache=path.parent / "copies")


def copy_of(path: Path) -> Path:
    (copy,) = (path.parent / "copies").glob("*.lines")
    return copy


def check(path: Path) -> None:
    dataset = opened(path)
    assert len(dataset) == COUNT
    assert dataset.__getitems__(range(COUNT)) == list(range(COUNT))
    dataset.close()
    assert read_stored(copy_of(path)) == LINES


@pytest.mark.parametrize("size", [0, BLOCK_BYTES, len(LINES), stored_bytes(len(LINES)) - 1])
def test_a_copy_that_was_cut_off_is_made_again(path: Path, size: int) -> None:
    check(path)
    os.truncate(copy_of(path), size)
    with pytest.warns(DataWarning, match="is damaged or cut off"):
        check(path)


def damage(copy: Path, place: int) -> None:
    with open(copy, "r+b") as file:
        file.seek(place)
        value = file.read(1)[0]
        file.seek(place)
        file.write(bytes([value ^ 1]))


def test_a_damaged_copy_is_made_again_when_the_damage_is_read(path: Path) -> None:
    dataset = opened(path)
    assert dataset.__getitems__(range(COUNT)) == list(range(COUNT))
    damage(copy_of(path), len(LINES) // 2)
    assert dataset[0] == 0
    with pytest.warns(DataWarning, match=r"\.lines is damaged"):
        assert dataset[COUNT // 2] == COUNT // 2
    other = opened(path)
    assert other.__getitems__(range(COUNT)) == dataset.__getitems__(range(COUNT)) == list(range(COUNT))
    for one in (dataset, other):
        one.close()


def test_a_lost_copy_is_made_again_unless_the_file_has_changed(path: Path) -> None:
    dataset, other = opened(path), opened(path)
    assert len(dataset) == len(other) == COUNT
    copy_of(path).unlink()
    assert dataset[COUNT - 1] == COUNT - 1
    copy_of(path).unlink()
    touch_later(path)
    with pytest.raises(SourceChanged, match=r"a\.jsonl\.gz has changed"):
        other[COUNT - 1]
    for one in (dataset, other):
        one.close()


def test_a_damaged_copy_of_a_file_that_has_changed_is_an_error(path: Path) -> None:
    dataset = opened(path)
    assert dataset[0] == 0
    damage(copy_of(path), len(LINES) // 2)
    before = os.stat(path)
    damage(path, before.st_size - 6)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.warns(DataWarning, match="is damaged"), pytest.raises(SourceError, match=r"a\.jsonl\.gz"):
        dataset[COUNT // 2]
    dataset.close()


def test_small_parts_are_read_in_place(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl.gz", lines_of(range(60)), is_split=True)
    dataset = JSONLines(path, cache=tmp_path / "copies")
    assert dataset.__getitems__([40, 3]) == [40, 3]
    assert not [*(tmp_path / "copies").glob("*.lines")]
    assert JSONLines(path, cache=False)[59] == 59
    dataset.close()


def test_without_a_place_for_the_copy_the_error_says_what_to_do(path: Path) -> None:
    with pytest.raises(BadOption, match=r"a\.jsonl\.gz is compressed as a whole.*cache=False"):
        len(JSONLines(path, cache=False))
    with (
        pytest.warns(PerformanceWarning, match="cannot be kept in"),
        pytest.raises(SourceError, match=r"a\.jsonl\.gz is compressed as a whole.*Give cache= a folder"),
    ):
        len(JSONLines(path, cache=path / "below a file"))
    assert list(JSONLines(path, "number", cache=False).stream()) == list(range(COUNT))
