from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedline.datasets import TarDataset
from feedline.datasets.storage.blob import LocalBlob
from feedline.errors import BadOption, CorruptSource, SourceChanged, SourceError
from tests.datasets.contract import SourceContract
from tests.datasets.formats.tar.writing import numbered, tar_bytes, write_shards

SIZES = (13, 1, 20, 0, 7)
COUNT = sum(SIZES)


class TestTarDataset(SourceContract):
    @pytest.fixture(autouse=True)
    def _write(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        self.paths = write_shards(tmp_path, SIZES)

    # Any: options as the user gives them.
    def make_source(self, **options: Any) -> TarDataset:
        return TarDataset(f"{self.folder}/*.tar", cache=self.folder / "index", **options)

    def samples(self) -> list[Any]:
        files = dict(numbered(COUNT))
        first = np.cumsum(SIZES)
        return [
            {
                "__key__": f"{number:06d}",
                "__url__": self.paths[int(np.searchsorted(first, number, side="right"))],
                "cls": number,
                "txt": f"sämple {number}",
                "bin": files[f"{number:06d}.bin"],
            }
            for number in range(COUNT)
        ]


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


class TestColumns(SourceContract):
    """Arrays, numbers and strings, which are read as columns."""

    @pytest.fixture(autouse=True)
    def _write(self, tmp_path: Path) -> None:
        self.folder = tmp_path
        files = [
            file
            for number in range(30)
            for file in (
                (f"{number:03d}.image.npy", npy(np.full((2, 3), number, np.float32))),
                (
                    f"{number:03d}.fortran.npy",
                    npy(np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3) + number)),
                ),
                (f"{number:03d}.cls", str(number).encode()),
                (f"{number:03d}.txt", f"ä{number}".encode()),
                (f"{number:03d}.bin", bytes([number])),
            )
        ]
        (tmp_path / "a.tar").write_bytes(tar_bytes(files[:60]))
        (tmp_path / "b.tar").write_bytes(tar_bytes(files[60:]))

    def make_source(self, **options: Any) -> TarDataset:
        fields = ("image.npy", "cls", "__key__", "txt", "bin", "fortran.npy")
        return TarDataset(f"{self.folder}/*.tar", cache=False, fields=fields, **options)

    def samples(self) -> list[Any]:
        return [
            (
                np.full((2, 3), number, np.float32),
                number,
                f"{number:03d}",
                f"ä{number}",
                bytes([number]),
                np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3) + number),
            )
            for number in range(30)
        ]

    def test_columns_are_really_read(self) -> None:
        source = self.make_source()
        columns = source.read_columns(np.array([3, 1]))
        assert columns[0].shape == (2, 2, 3)
        assert columns[1].tolist() == [3, 1]
        source.close()


@pytest.mark.parametrize(
    "options", [{"decode": False}, {"transform": len}, {"fields": None}, {"fields": ["npy", "json"]}]
)
def test_columns_are_only_read_for_plain_fields(tmp_path: Path, options: dict[str, Any]) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.npy", npy(np.zeros(3))), ("a.json", b"1")]))
    source = table(path, **{"fields": "npy", **options})
    assert source.read_columns(np.array([0])) is None
    source.close()


@pytest.fixture
def paths(tmp_path: Path) -> list[str]:
    return write_shards(tmp_path, SIZES)


def table(paths: Any, **options: Any) -> TarDataset:
    made: TarDataset = TarDataset(paths, **{"fields": "cls", "cache": False, **options})
    return made


def test_a_batch_takes_few_reads(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    source = table(paths, fields=("cls", "bin"))
    len(source)
    reads: list[str] = []
    read = LocalBlob.read

    def watched(self: LocalBlob, start: int, stop: int) -> bytes:
        reads.append(self.name)
        return read(self, start, stop)

    monkeypatch.setattr(LocalBlob, "read", watched)
    found = source.__getitems__([30, 2, 14, 5, 15, 3, 2])
    assert [number for number, _ in found] == [30, 2, 14, 5, 15, 3, 2]
    assert reads == [paths[0], paths[2], paths[2]]  # sample 30 is too far from 14 and 15
    source.close()


def test_only_the_wanted_fields_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.cls", b"3"), ("a.bin", bytes(5_000_000)), ("b.cls", b"4")]))
    source = table(path)
    assert len(source) == 2
    sizes: list[int] = []
    read = LocalBlob.read

    def watched(self: LocalBlob, start: int, stop: int) -> bytes:
        sizes.append(stop - start)
        return read(self, start, stop)

    monkeypatch.setattr(LocalBlob, "read", watched)
    assert source.__getitems__([1, 0]) == [4, 3]
    assert sizes == [1, 1]
    source.close()


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a\udcff.txt", b"x"), ("ä.txt", b"y")], errors="surrogateescape", format=1))
    source = TarDataset(path, cache=tmp_path / "index", fields=("__key__", "txt"))
    assert list(source) == [("a\udcff", "x"), ("ä", "y")] == list(TarDataset(path, fields=("__key__", "txt")).stream())
    source.close()


def test_samples_that_lack_a_field(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([("a.jpg", b"1"), ("a.cls", b"1"), ("b.png", b"2"), ("b.cls", b"2"), ("c.cls", b"3")]))
    source = table(path, fields=("jpg;png", "cls"), decode=False)
    assert source[1] == (b"2", b"2")
    with pytest.raises(SourceError, match=r"a\.tar: sample 'c'"):
        source[2]
    with pytest.raises(BadOption, match="'gif'"):
        len(table(path, fields="gif"))
    source.close()


def test_no_samples_at_all(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([]))
    source = table(path)
    assert len(source) == 0
    assert source.__getitems__([]) == []
    with pytest.raises(IndexError):
        source[0]


@pytest.mark.parametrize("fields", ["npy", ["npy"]])
def test_a_shard_that_is_rewritten_while_it_is_open_is_detected(tmp_path: Path, fields: Any) -> None:
    path = tmp_path / "shard.tar"

    def write(first: int) -> None:
        path.write_bytes(tar_bytes([(f"{number}.npy", npy(np.arange(first + number, 99))) for number in range(5)]))

    write(0)
    source = table(str(path), fields=fields, cache=False)
    source.__getitems__([0])
    stamp = os.stat(path)
    write(0)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))  # the same size, but another modification time
    for read in (source.__getitems__, source.read_columns):
        with pytest.raises(SourceChanged, match=r"shard\.tar has changed since its index was made"):
            read(np.array([1]))
    source.close()


def test_shards_that_are_damaged_or_missing_or_have_a_duplicate_key(paths: list[str], tmp_path: Path) -> None:
    os.truncate(paths[2], 5000)
    with pytest.raises(CorruptSource, match=r"shard-002\.tar"):
        len(table(paths))
    with pytest.raises(SourceError, match=r"none\.tar cannot be opened"):
        len(table([paths[0], str(tmp_path / "none.tar")]))
    path = tmp_path / "twice.tar"
    path.write_bytes(tar_bytes([("a.cls", b"1"), ("b.cls", b"2"), ("a.txt", b"3")]))
    with pytest.raises(CorruptSource, match=r"twice\.tar: the key 'a' comes again at byte 2048"):
        len(table(path))
    assert len(table(path, unique_keys=False, fields=None)) == 3


def test_nothing_is_opened_before_it_is_needed_and_the_index_is_pickled(tmp_path: Path) -> None:
    source = table(str(tmp_path / "shard-000.tar"))
    text = pickle.dumps(source)
    write_shards(tmp_path, SIZES)
    other = pickle.loads(text)
    assert len(other) == 13
    os.unlink(tmp_path / "shard-000.tar")
    again = pickle.loads(pickle.dumps(other))
    assert len(again) == 13  # without the shard
