from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

import feedline
from feedline.datasets.formats.tar import index as module
from feedline.datasets.formats.tar.index import Index, ShardIndex, index_of, scan
from feedline.datasets.storage.blob import LocalBlob
from tests.datasets.formats.tar.writing import numbered, tar_bytes


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes(numbered(20)))
    return path


def get(path: Path, folder: Path | None, *, unique: bool = True) -> ShardIndex:
    blob = LocalBlob(str(path))
    try:
        return index_of(blob, False if folder is None else folder, unique=unique)
    finally:
        blob.close()


def same(one: ShardIndex, other: ShardIndex) -> bool:
    return all(np.array_equal(value, getattr(other, name)) for name, value in vars(one).items())


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects the names of the scanned shards."""
    found: list[str] = []

    def watched(blob: LocalBlob, *, unique: bool) -> ShardIndex:
        found.append(blob.name)
        return scan(blob, unique=unique)

    monkeypatch.setattr(module, "scan", watched)
    return found


def test_checksums_take_space_only_if_there_are_any(path: Path, tmp_path: Path) -> None:
    without = get(path, tmp_path / "index")
    assert len(without.sums) == len(without.has_sum) == 0
    samples = [{"x": np.arange(number), "label": number} for number in range(20)]
    packed = feedline.pack(samples, tmp_path / "b.tar", workers=0).path
    for found in (get(packed, tmp_path / "index"), get(packed, tmp_path / "index")):
        assert [found.sums.dtype.name, found.has_sum.dtype.name] == ["uint32", "bool"]
        assert found.has_sum.all()
        assert len(found.sums) == len(found.has_sum) == 40
    index = Index([without, found])
    for one in (index, pickle.loads(pickle.dumps(index))):
        assert [checksum for *_, checksum in one.fields(0, 3)] == [-1, -1, -1]
        assert [checksum for *_, checksum in one.fields(1, 3)] == found.sums[6:8].tolist()
        one.note_compared(1, 7)
        assert [checksum for *_, checksum in one.fields(1, 3)] == [found.sums[6], -1]


@pytest.mark.parametrize("how", ["time", "size", "content"])
def test_a_shard_that_changed_is_indexed_again(path: Path, tmp_path: Path, scans: list[str], how: str) -> None:
    first = get(path, tmp_path / "index")
    if how == "time":
        os.utime(path, ns=(5, 5))
    elif how == "size":
        facts = path.stat()
        path.write_bytes(path.read_bytes() + bytes(512))
        os.utime(path, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    else:
        path.write_bytes(tar_bytes(numbered(21)))
    second = get(path, tmp_path / "index")
    assert len(scans) == 2
    assert second.count == (21 if how == "content" else 20)
    assert not same(first, second)
    assert len(list((tmp_path / "index").glob("*.tar-index"))) == 1


def test_scanning_skips_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(tar_bytes([(f"{n}.bin", bytes(1_000_000)) for n in range(10)]))
    read = 0
    pread = os.pread

    def watched(file: int, count: int, offset: int) -> bytes:
        nonlocal read
        data = pread(file, count, offset)
        read += len(data)
        return data

    monkeypatch.setattr(os, "pread", watched)
    assert get(path, None).count == 10
    assert read < 200_000
