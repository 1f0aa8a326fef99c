from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

import feedline
from feedline.errors import CorruptSource
from feedline.tools.write.inspection import inspect
from tests.tools.write.stores import SHARDED, Mixed

pytestmark = pytest.mark.sample(5)


def verify(path: Path) -> int:
    verified: int = inspect(str(path), verify=True)["verified"]
    return verified


@pytest.mark.parametrize("format_", SHARDED)
def test_verifying_finds_a_missing_shard(tmp_path: Path, format_: str) -> None:
    packed = feedline.pack(Mixed(), tmp_path / "out", format=format_, samples_per_shard=30, workers=0)
    assert verify(packed.path) == 100
    shards = sorted(packed.path.glob("shard-*"))
    shards[2].unlink()
    with pytest.raises(CorruptSource, match=r"it has 75 samples, but 100 were packed"):
        verify(packed.path)


def test_files_that_pack_did_not_write_are_read_to_their_end(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(300))
    assert verify(tmp_path / "a.npy") == 300
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for number in range(150):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 1000
            archive.addfile(info, io.BytesIO(np.random.default_rng(number).bytes(500).hex().encode()))
    assert verify(tmp_path / "a.tar.gz") == 150
    os.truncate(tmp_path / "a.tar.gz", (tmp_path / "a.tar.gz").stat().st_size - 100)
    inspect(str(tmp_path / "a.tar.gz"))  # the first samples are intact
    with pytest.raises(CorruptSource, match=r"a\.tar\.gz"):
        verify(tmp_path / "a.tar.gz")
