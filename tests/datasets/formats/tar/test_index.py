from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feedline
from feedline.datasets import TarDataset
from feedline.datasets.formats.tar import index as module
from feedline.datasets.formats.tar.index import Index, Range, ShardIndex, give, index_of, scan
from feedline.datasets.storage import ranges
from feedline.datasets.storage.blob import LocalBlob
from feedline.datasets.storage.ranges import coalesced
from feedline.errors import DataWarning, FeedlineWarning
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


def test_an_index_is_built_once(path: Path, tmp_path: Path, scans: list[str]) -> None:
    first = get(path, tmp_path / "index")
    assert first.count == 20
    second = get(path, tmp_path / "index")
    assert same(first, second)
    assert len(scans) == 1
    assert len(list((tmp_path / "index").glob("*.tar-index"))) == 1, "a pattern for shards must not find it"
    get(path, None)
    assert len(scans) == 2


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


def test_a_damaged_index_is_rebuilt(path: Path, tmp_path: Path, scans: list[str]) -> None:
    first = get(path, tmp_path / "index")
    (file,) = (tmp_path / "index").glob("*.tar-index")
    whole = file.read_bytes()
    for damaged in (whole[:100] + bytes(9) + whole[109:], whole[:-1], b""):
        file.write_bytes(damaged)
        with pytest.warns(DataWarning, match="is made again"):
            assert same(get(path, tmp_path / "index"), first)
    assert len(scans) == 4


def test_works_without_a_writable_cache_folder(path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.warns(FeedlineWarning, match="cannot be kept"):
        assert get(path, tmp_path / "file" / "index").count == 20


def test_a_full_disk_leaves_no_half_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(FeedlineWarning, match="No space left"):
        assert get(path, tmp_path / "index").count == 20
    assert list((tmp_path / "index").glob("*.tar-index")) == []


def test_the_index_is_stored_in_the_users_cache_folder(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEEDLINE_CACHE", str(tmp_path / "cache"))
    assert len(TarDataset(path)) == 20
    assert len(list((tmp_path / "cache").glob("*.tar-index"))) == 1


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


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 90_000), st.integers(0, 30_000)), max_size=30),
    st.booleans(),
)
def test_coalesced_reads_cover_every_request_with_few_reads(asked: list[tuple[int, int, int]], is_local: bool) -> None:
    shards = [bytes((place * 31 + shard) % 251 for place in range(251)) * 500 for shard in range(3)]
    wanted = [Range(shard, start, start + size, {}, "x") for shard, start, size in asked]
    spans = coalesced(wanted, is_local=lambda shard: is_local)
    for span in spans:
        give(span, shards[span.shard][span.start : span.stop])
    for one in wanted:
        assert one.sample["x"] == shards[one.shard][one.start : one.stop]
    assert sum(len(span.ranges) for span in spans) == len(wanted)
    gap = ranges._LOCAL_GAP if is_local else ranges.REMOTE_GAP
    for span, other in itertools.pairwise(spans):
        assert (span.shard, span.stop) < (other.shard, other.start)
        assert span.shard != other.shard or other.start - span.stop > gap
