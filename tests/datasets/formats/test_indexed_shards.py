"""Shards with an index.json, the common part of MDS and LitData; the tests of the two formats cover the rest."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
import zstandard

from feedline.datasets import Remote
from feedline.datasets.formats.indexed_shards import Folder, OpenShards, Shard, starts_of
from feedline.datasets.framework.shard_files import ByteRange
from feedline.errors import CorruptSource, SourceChanged


def shard(path: Path, samples: list[bytes], packing: str | None = None) -> Shard:
    offsets = np.cumsum([8 + 4 * len(samples), *map(len, samples)])
    data = struct.pack("<I", len(samples)) + offsets.astype("<u4").tobytes() + b"".join(samples)
    path.write_bytes(data if packing is None else zstandard.compress(data))
    return Shard(str(path), (len(data),), len(samples), packing)


def test_samples_come_from_their_shards(tmp_path: Path) -> None:
    shards = [
        shard(tmp_path / "a", [b"0", b"", b"22"]),
        shard(tmp_path / "b", []),
        shard(tmp_path / "c", [b"3"], "zstd"),
    ]
    assert starts_of(shards).tolist() == [0, 3, 3, 4]
    opened = OpenShards(shards, Remote(), 100)
    assert opened.samples(np.array([3, 0, 2, 1, 3])) == [(2, b"3"), (0, b"0"), (0, b"22"), (0, b""), (2, b"3")]
    assert opened.size(2) == 13
    assert opened.read([ByteRange(2, 12, 13)]) == [b"3"]
    with pytest.raises(CorruptSource, match="only 13"):
        opened.read([ByteRange(2, 12, 14)])
    opened.close()


def test_more_shards_than_the_limit_of_open_files(tmp_path: Path) -> None:
    shards = [shard(tmp_path / f"{number}", [b"%d" % number]) for number in range(200)]
    opened = OpenShards(shards, Remote(), 100)
    for _ in range(2):
        assert [data for _, data in opened.samples(np.arange(200))] == [b"%d" % number for number in range(200)]
        assert len(list(Path("/proc/self/fd").iterdir())) < 150
    shard(tmp_path / "0", [b"7"])  # the same size, and not open now
    with pytest.raises(SourceChanged):
        opened.samples(np.array([0]))
    opened.close()


@pytest.mark.parametrize(
    "table", [(2, 16, 17, 18), (1, 12, 14, 0), (1, 11, 13, 0), (1, 13, 12, 0), (1, 12, 1 << 31, 0)]
)
def test_malformed_tables_are_rejected(tmp_path: Path, table: tuple[int, ...]) -> None:
    data = struct.pack("<3I", *table[:3]) + b"x"
    (tmp_path / "a").write_bytes(data)
    opened = OpenShards([Shard(str(tmp_path / "a"), (len(data),), 1)], Remote(), 100)
    with pytest.raises(CorruptSource, match=r"a has 2 samples|table at the beginning"):
        opened.samples(np.array([0]))
    opened.close()


@pytest.mark.parametrize("name", ["", ".", "..", "../a", "/a", "a/../b", "a//b", "a\\b", "a\0", "http://a", None, 3])
def test_rejects_names_outside_of_the_folder(tmp_path: Path, name: object) -> None:
    folder = Folder(tmp_path, None, 1)
    with pytest.raises(CorruptSource, match="names the file"):
        folder.shard(name, 100, 1)
    assert folder.shard("0/a.bin", 100, 1).address == f"{tmp_path}/0/a.bin"
