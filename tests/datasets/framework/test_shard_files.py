from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.datasets.framework.shard_files import ByteRange, ShardFiles
from feedline.datasets.storage import ranges
from feedline.datasets.storage.blob import Blob, LocalBlob
from feedline.errors import SourceChanged


class Memory(Blob):
    """A file in memory that notes what is read of it."""

    tag = ""

    def __init__(self, data: bytes, is_local: bool) -> None:
        self.name = self.address = "memory"
        self.data, self.size, self.is_local = data, len(data), is_local
        self.reads: list[tuple[int, int]] = []

    def read(self, start: int, stop: int) -> bytes:
        self.reads.append((start, stop))
        return self.data[start:stop]

    def close(self) -> None:
        pass


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 90_000), st.integers(0, 30_000)), max_size=30),
    st.booleans(),
)
def test_every_range_is_read_with_few_reads(asked: list[tuple[int, int, int]], is_local: bool) -> None:
    blobs = [Memory(bytes((place * 31 + shard) % 251 for place in range(251)) * 500, is_local) for shard in range(3)]
    files = ShardFiles(blobs.__getitem__, 1)
    wanted = [ByteRange(shard, start, start + size) for shard, start, size in asked]
    assert [bytes(data) for data in files.read(wanted)] == [
        blobs[one.shard].data[one.start : one.stop] for one in wanted
    ]
    for blob in blobs:
        blob.reads.clear()
    spans = files.spans(wanted)
    gap = ranges._LOCAL_GAP if is_local else ranges.REMOTE_GAP
    for blob in blobs:
        assert all(other[0] - span[1] > gap for span, other in itertools.pairwise(blob.reads))
    for span, _ in spans:
        end = None
        for one in sorted(span.ranges, key=lambda one: one.start):
            assert end is None or one.start - end <= gap, "no more is read than the gap between two ranges"
            end = max(one.stop, end or 0)


def test_a_file_that_was_written_to_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    opened: list[Blob] = []

    def open_file(number: int) -> Blob:
        opened.append(LocalBlob(str(path)))
        if opened[-1].size != 6:
            raise SourceChanged(str(path))
        return opened[-1]

    files = ShardFiles(open_file, 1)
    assert files.read([ByteRange(0, 0, 6)]) == files.read([ByteRange(0, 0, 6)]) == [b"before"]
    assert len(opened) == 1
    path.write_bytes(b"after!")
    os.utime(path, ns=(5, 5))
    assert files.read([ByteRange(0, 0, 6)]) == [b"after!"]
    assert len(opened) == 2
    path.write_bytes(b"longer than before")
    with pytest.raises(SourceChanged):
        files.read([ByteRange(0, 0, 6)])
    files.close()
    for blob in opened:
        blob.close()


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"before")
    blob = LocalBlob(str(path))
    files = ShardFiles(lambda number: blob, 1)

    def overwritten(start: int, stop: int) -> bytes:
        path.write_bytes(b"after!")
        os.utime(path, ns=(5, 5))
        return b"after!"

    monkeypatch.setattr(blob, "read", overwritten)
    with pytest.raises(SourceChanged):
        files.spans([ByteRange(0, 0, 6)])
    files.close()
    blob.close()
